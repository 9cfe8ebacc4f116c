"""Sentences with a tag for each word, from files: treebanks, words with slashes, or a word a line."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from regard.config import Config
from regard.data.labelled import Tagged
from regard.data.registry import get
from regard.data.text import check_file, read_lines
from regard.data.trees import clean, read_trees, word_for_people
from regard.errors import UserError

_Found = tuple[str, list[str], list[str]]  # where it was found, words, tags


class TaggedConfig(Config):
    """Where tagged sentences are: a text file, compressed or not."""

    set: Annotated[str, Field(min_length=1)] | None = None
    """A named data set (`regard data list`) that the path is in; without it, it is a path of the file system."""
    path: Annotated[str, Field(min_length=1)]
    form: Literal["trees", "slashes", "columns"] = "trees"
    """Trees in Penn brackets, whose leaves have tags; a sentence a line with a tag behind each word, `the/DT cat/NN`;
    or a word a line with its tag in another column, and an empty line between sentences."""
    columns: Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False)] = (1, 2)
    """The columns of word and tag, counted from 1, between tabs or blanks."""

    @property
    def place(self) -> str:
        """The path, for messages."""
        return self.path if self.set is None else f"{self.set}: {self.path}"

    @property
    def file(self) -> Path:
        """The file itself. That of a named set is found on this machine, or fetched."""
        return Path(self.path) if self.set is None else get(self.set, [self.path]) / self.path


def read_tagged(config: TaggedConfig, known: Sequence[str] | None = None) -> Iterator[Tagged]:
    """The sentences, one by one. Where `known` tags are given, any other is an error; so are no sentences at all."""
    path = config.file
    check_file(path)
    names = None if known is None else frozenset(known)
    read = {"trees": _from_trees, "slashes": _from_slashes, "columns": _from_columns}[config.form]
    found = False
    for where, words, tags in read(path, config):
        found = True
        for word, tag in zip(words, tags, strict=True):
            if names is not None and tag not in names:
                raise UserError(f"{where}: the tag {tag!r} of {word!r} is unknown; known are {_listed(known or ())}.")
        yield Tagged(words, tags)
    if not found:
        raise UserError(f"{config.place}: there are no tagged sentences in it; at least one is needed.")


def _from_trees(path: Path, config: TaggedConfig) -> Iterator[_Found]:
    for number, tree in enumerate(read_trees(path), start=1):
        cleaned = clean(tree)
        if cleaned is not None:
            yield f"{path}, tree {number}", [word_for_people(word) for word in cleaned.words()], list(cleaned.tags())


def _from_slashes(path: Path, config: TaggedConfig) -> Iterator[_Found]:
    for number, line in enumerate(read_lines(path), start=1):
        pairs = [item.rpartition("/") for item in line.split()]
        bare = [tag or word for word, _, tag in pairs if not word or not tag]
        if bare:
            raise UserError(
                f"{path}, line {number}: found {len(pairs)} words and {len(pairs) - len(bare)} tags; {bare[0]!r} has "
                "none. Write it as word/TAG."
            )
        if pairs:
            yield f"{path}, line {number}", [word for word, _, _ in pairs], [tag for _, _, tag in pairs]


def _from_columns(path: Path, config: TaggedConfig) -> Iterator[_Found]:
    words: list[str] = []
    tags: list[str] = []
    first = 1
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            if words:
                yield f"{path}, the sentence from line {first} on", words, tags
            words, tags, first = [], [], number + 1
            continue
        cells = line.split("\t") if "\t" in line else line.split()
        if not words and line.startswith("#") and "\t" not in line:
            continue  # what is said of a sentence stands before it
        chosen = [cells[column - 1].strip() if column <= len(cells) else "" for column in config.columns]
        if not all(chosen):
            raise UserError(
                f"{path}, line {number}: found {len(cells)} columns; a word is expected in column "
                f"{config.columns[0]} and its tag in column {config.columns[1]}."
            )
        words.append(chosen[0])
        tags.append(chosen[1])
    if words:
        yield f"{path}, the sentence from line {first} on", words, tags


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
