"""Reading sentences with a tag for each word: from treebanks, lines of word/TAG, one word per line, or records."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data.source import DataSource, NonEmpty, TwoColumns, TwoKeys
from regard.data.text.lines import check_file, read_lines, uncompressed_suffix
from regard.data.text.records import JSON_LINES, choose_columns, is_records, read_records, record_files
from regard.data.trees.cleaning import clean_tree
from regard.data.trees.tree import read_trees, unescape_brackets
from regard.errors import UserError
from regard.files import check_plain_file


class TaggedConfig(DataSource):
    """Tagged sentences: a file, compressed or not, or a folder of records."""

    path: NonEmpty
    """A text file in the `format`; or records with a list of words and a list of tags: a .jsonl or .parquet file, a
    folder of such files, or one written by `datasets.save_to_disk`."""
    format: Literal["auto", "trees", "slashes", "columns"] = "auto"
    """The format of a text file. trees: trees in Penn bracket format, whose leaves have tags. slashes: one sentence per
    line with a tag after each word, `the/DT cat/NN`. columns: one word per line with its tag in another column, and an
    empty line between sentences. auto: the first line tells which of them it is."""
    columns: TwoColumns | None = None
    """The columns of word and tag in the format `columns`, counted from 1, separated by tabs or spaces; by default the
    first two. In a .parquet file those of words and tags, by name or number; by default tokens and tags, or what else
    they are often called."""
    keys: TwoKeys | None = None
    """The keys of words and tags in a .jsonl file; by default as the columns of a .parquet file."""


class TaggedSentence(NamedTuple):
    """The words of a sentence and a tag for each."""

    words: Sequence[str]
    tags: Sequence[str]


def read_tagged(config: TaggedConfig) -> Iterator[TaggedSentence]:
    """The sentences, one by one. An empty file is an error."""
    (path,) = config.resolve(config.path)
    check_plain_file(path)
    files = record_files(path) if path.is_dir() else [path]
    check_file(files[0] if files else path)
    found = False
    for words, tags in chain.from_iterable(_read(file, config) for file in files):
        found = True
        yield TaggedSentence(words, tags)
    if not found:
        raise UserError(f"{config.location}: there are no tagged sentences in it; at least one is needed.")


_Example = tuple[list[str], list[str]]  # words, tags


def _read(path: Path, config: TaggedConfig) -> Iterator[_Example]:
    if is_records(path):
        return _read_records(path, config)
    kind = _detect_format(path) if config.format == "auto" else config.format
    return {"trees": _read_trees, "slashes": _read_slashes, "columns": _read_columns}[kind](path, config)


_TREE = re.compile(r"\((\s*\(|[^\s()]+\s*(\(|$|[^\s()]+\)))")
"""How a line of trees begins: two brackets, or a label with its first child; not the bracket that is a word."""


def _detect_format(path: Path) -> str:
    """The format of a file by its first line, comments aside."""
    for number, line in enumerate(read_lines(path), start=1):
        text = line.strip()
        if not text or (text.startswith("#") and "\t" not in text):
            continue
        if text == "(" or (_TREE.match(text) and "\t" not in text):
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


_ROLES = {"words": ("tokens", "words"), "tags": ("tags", "ner_tags", "pos_tags", "upos", "labels")}


def _read_records(path: Path, config: TaggedConfig) -> Iterator[_Example]:
    names = choose_columns(path, config.keys if uncompressed_suffix(path) in JSON_LINES else config.columns, _ROLES)
    for where, lists in read_records(path, names):
        for name, values in zip(names, lists, strict=True):
            if not isinstance(values, list) or not all(type(one) in (str, int) and one != "" for one in values):
                raise UserError(f"{where}: expected a list of words or tags at the key {name!r}, found {values!r:.80}.")
        words, tags = ([str(one) for one in values] for values in lists)
        if len(words) != len(tags):
            raise UserError(f"{where}: found {len(words)} words and {len(tags)} tags; each word needs one.")
        if words:
            yield words, tags


def _read_columns(path: Path, config: TaggedConfig) -> Iterator[_Example]:
    columns = config.columns or (1, 2)
    if any(isinstance(column, str) for column in columns):
        raise UserError(f"{path}: its columns have no names; give the numbers of those with words and tags.")
    word_column, tag_column = (int(column) for column in columns)
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
        chosen = [fields[column - 1].strip() if column <= len(fields) else "" for column in (word_column, tag_column)]
        if not all(chosen):
            raise UserError(
                f"{path}, line {number}: found {len(fields)} columns; expected a word in column "
                f"{word_column} and its tag in column {tag_column}."
            )
        words.append(chosen[0])
        tags.append(chosen[1])
    if words:
        yield words, tags
