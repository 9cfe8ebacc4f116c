"""Reading sentences with a tag for each word: from treebanks, from lines of word/TAG, or from one word per line."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data.source import DataSource, NonEmpty, TwoColumns
from regard.data.text.lines import check_file, read_lines
from regard.data.trees.cleaning import clean_tree
from regard.data.trees.tree import read_trees, unescape_brackets
from regard.errors import UserError
from regard.files import check_plain_file


class TaggedConfig(DataSource):
    """Tagged sentences: a text file, compressed or not."""

    path: NonEmpty
    format: Literal["auto", "trees", "slashes", "columns"] = "auto"
    """Trees in Penn bracket format, whose leaves have tags; one sentence per line with a tag after each word, `the/DT
    cat/NN`; or one word per line with its tag in another column, and an empty line between sentences. By default the
    first line decides."""
    columns: TwoColumns = (1, 2)
    """The columns of word and tag, counted from 1, separated by tabs or spaces."""


class TaggedSentence(NamedTuple):
    """The words of a sentence and a tag for each."""

    words: Sequence[str]
    tags: Sequence[str]


def read_tagged(config: TaggedConfig) -> Iterator[TaggedSentence]:
    """The sentences, one by one. An empty file is an error."""
    (path,) = config.resolve(config.path)
    check_plain_file(path)
    check_file(path)
    format = _detect_format(path) if config.format == "auto" else config.format
    read = {"trees": _read_trees, "slashes": _read_slashes, "columns": _read_columns}[format]
    found = False
    for words, tags in read(path, config):
        found = True
        yield TaggedSentence(words, tags)
    if not found:
        raise UserError(f"{config.location}: there are no tagged sentences in it; at least one is needed.")


_Example = tuple[list[str], list[str]]  # words, tags


_TREE = re.compile(r"\((\s*\(|[^\s()]+\s*(\(|$|[^\s()]+\)))")
"""How a line of trees begins: two brackets, or a label with its first child; not the bracket that is a word."""


def _detect_format(path: Path) -> str:
    """The format of a file by its first line, comments aside."""
    for number, line in enumerate(read_lines(path), start=1):
        text = line.strip()
        if not text or (text.startswith("#") and "\t" not in text):
            continue
        if _TREE.match(text) and "\t" not in text:
            return "trees"
        items = text.split()
        if "\t" not in text and 2 * sum(re.fullmatch(".+/.+", item) is not None for item in items) > len(items):
            return "slashes"
        if len(items) > 1:
            return "columns"
        raise UserError(
            f"{path}, line {number}: found {text[:40]!r} without a tag; expected a tree, words with their tags "
            "(the/DT cat/NN), or one word per line with its tag after a tab."
        )
    return "columns"


def _read_trees(path: Path, config: TaggedConfig) -> Iterator[_Example]:
    for tree in read_trees(path):
        cleaned = clean_tree(tree)
        if cleaned is not None:
            yield [unescape_brackets(word) for word in cleaned.words()], list(cleaned.tags())


def _read_slashes(path: Path, config: TaggedConfig) -> Iterator[_Example]:
    for number, line in enumerate(read_lines(path), start=1):
        pairs = [item.rpartition("/") for item in line.split()]
        untagged = [tag or word for word, _, tag in pairs if not word or not tag]
        if untagged:
            raise UserError(
                f"{path}, line {number}: found {len(pairs)} words and {len(pairs) - len(untagged)} tags; "
                f"{untagged[0]!r} has no tag. Write it as word/TAG."
            )
        if pairs:
            yield [word for word, _, _ in pairs], [tag for _, _, tag in pairs]


def _read_columns(path: Path, config: TaggedConfig) -> Iterator[_Example]:
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            if words:
                yield words, tags
            words, tags = [], []
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        if not words and line.startswith("#") and "\t" not in line:
            continue  # comments come before a sentence
        chosen = [fields[column - 1].strip() if column <= len(fields) else "" for column in config.columns]
        if not all(chosen):
            raise UserError(
                f"{path}, line {number}: found {len(fields)} columns; expected a word in column "
                f"{config.columns[0]} and its tag in column {config.columns[1]}."
            )
        words.append(chosen[0])
        tags.append(chosen[1])
    if words:
        yield words, tags
