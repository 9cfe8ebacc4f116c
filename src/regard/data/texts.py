"""Texts to learn from: documents in one file or in a folder of files, or a stated part of them.

Everything streams. A long document comes in passages of some thousand characters, which together are the document and,
for tokenizers of ours, give the ids the whole would give: a passage ends in front of the line break before a letter or
digit, where no token reaches across.

A part is a share of the characters, line ends included, counted once before: of n characters those from
`int(n * begin)` to `int(n * end)`, so that parts that share a boundary share no character and leave none out. Where
each file is one document, it is cut at that very character (nanoGPT's `data[:int(n * 0.9)]`). Lines and documents
between blank lines stay whole: each belongs to the part in which it begins.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.data.registry import get
from regard.data.text import check_file, plain_name, plain_suffix, read_lines
from regard.data.tokenizer import TextTokenizer
from regard.errors import UserError
from regard.files import file_sha256

Unit = Literal["file", "line", "blank"]

PASSAGE = 1 << 14
"""How many characters a passage has at least, if its document has more."""
_CHUNK = 1 << 20
"""Characters tokenised at once, on all threads."""


class TextConfig(Config):
    """Where a text is, how its documents are told apart, and which part of it is meant."""

    set: Annotated[str, Field(min_length=1)] | None = None
    """A named data set (`regard data list`) that the path is in; without it, it is a path of the file system."""
    path: Annotated[str, Field(min_length=1)]
    """A text file, compressed or not, or a folder: its .txt files, sorted by name."""
    unit: Unit = "file"
    """What a document is: a whole file, a line, or what stands between blank lines."""
    begin: float = Field(default=0.0, ge=0, lt=1)
    """Where the part begins, as a share of all characters: 0.9 for the last tenth."""
    end: float = Field(default=1.0, gt=0, le=1)
    """Where it ends."""

    @model_validator(mode="after")
    def _some_text(self) -> Self:
        if self.begin >= self.end:
            raise ConfigError("end", f"found {self.end}, but the part begins at {self.begin}; it must end after that.")
        return self

    @property
    def place(self) -> str:
        """The path, for messages."""
        return self.path if self.set is None else f"{self.set}: {self.path}"

    def files(self) -> list[Path]:
        """The files to read, in order. Those of a named set are found on this machine, or fetched."""
        path = Path(self.path) if self.set is None else get(self.set, [self.path]) / self.path
        return text_files(path) if path.is_dir() else [path]


class Passage(NamedTuple):
    """Some text of one document."""

    text: str
    begins: bool
    """Whether it is the first of its document's passages."""
    ends: bool
    """Whether the document ends here, and not only the passage or the part of the text."""


@dataclass(frozen=True)
class TextCounts:
    """How much text there is; bytes are those of UTF-8."""

    documents: int
    characters: int
    bytes: int

    def __str__(self) -> str:
        return f"{_many(self.documents, 'document')} of {_many(self.characters, 'character')}"


def read_texts(config: TextConfig) -> Iterator[str]:
    """The documents, one at a time. None at all is an error."""
    held: list[str] = []
    for passage in read_passages(config):
        if passage.begins and held:
            yield "".join(held)
            held.clear()
        held.append(passage.text)
    yield "".join(held)


def read_passages(config: TextConfig, longest: int = PASSAGE) -> Iterator[Passage]:
    """The documents in passages: each ends at the first good place after `longest` characters, or with its document.

    None at all is an error.
    """
    first, last = _bounds(config)
    cuts = config.unit == "file"
    held = _Held(longest, ended=not cuts)
    found = taken = over = False
    for line in _UNITS[config.unit](config.files()):
        if line.opens and held:
            yield held.close(ends=True)
        if line.opens:
            taken = cuts or first <= line.place < last
        text = line.text
        if cuts:
            over = line.place + len(text) > last
            text = text[max(first - line.place, 0) : max(last - line.place, 0)]
        if taken and text:
            found = True
            if held.may_end_before(text):
                yield held.pause()
            held.add(text)
        if over or (line.place >= last and not taken):
            break
    if held:
        yield held.close(ends=not over)
    if not found:
        part = "" if config.begin == 0 and config.end == 1 else f" between {config.begin} and {config.end} of it"
        raise UserError(f"{config.place}: there is no text{part}; at least one character is needed.")


def count_text(config: TextConfig) -> TextCounts:
    """How many documents, characters and bytes there are."""
    documents = characters = size = 0
    for passage in read_passages(config):
        documents += passage.begins
        characters += len(passage.text)
        size += len(passage.text.encode())
    return TextCounts(documents, characters, size)


def encode_passages(
    passages: Iterable[Passage], tokenizer: TextTokenizer, *, end: int | None = None, whole: bool = True
) -> Iterator[tuple[list[int]]]:
    """Ids as the items of a one-sided token store, with the id `end` behind each document that ends.

    An item is a document, whose ids then must fit in memory; where documents do not matter, because rows are cut from
    all the text, it may be a passage (`whole=False`), and the memory of one chunk is enough.
    """
    held: list[int] = []
    for chunk in _chunks(passages):
        for passage, ids in zip(chunk, tokenizer.encode_batch([passage.text for passage in chunk]), strict=True):
            if held and (passage.begins or not whole):
                yield (held,)
                held = []
            held += ids
            if passage.ends and end is not None:
                held.append(end)
    if held:
        yield (held,)


def fingerprint(config: TextConfig) -> str:
    """SHA-256 in hexadecimal over the files' bytes and what decides how they are read, wherever they are."""
    whole = hashlib.sha256(repr((config.unit, config.begin, config.end)).encode())
    for path in config.files():
        check_file(path)
        try:
            whole.update(f"{path.suffix.lower()} {file_sha256(path)}\n".encode())
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    return whole.hexdigest()


def text_files(folder: Path) -> list[Path]:
    """The .txt files of a folder, compressed or not, sorted by name; hidden ones and folders in it are passed over."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    named: dict[str, Path] = {}
    for path in paths:
        if plain_suffix(path) == ".txt":
            if plain_name(path) in named:
                raise UserError(f"{path} and {named[plain_name(path)].name} stand for the same text; remove one.")
            named[plain_name(path)] = path
    if not named:
        raise UserError(f"{folder} holds no .txt files; nothing to read texts from.")
    return list(named.values())


class _Line(NamedTuple):
    """A line of a document with its end, and how many characters of the files stand before it."""

    place: int
    text: str
    opens: bool
    """Whether it is the first of its document."""


def _by_file(files: list[Path]) -> Iterator[_Line]:
    place = 0
    for path in files:
        opens = True
        for text in read_lines(path, ends=True):
            yield _Line(place, text, opens)
            place += len(text)
            opens = False


def _by_line(files: list[Path]) -> Iterator[_Line]:
    return (line._replace(opens=True) for line in _by_file(files) if line.text.strip())


def _by_blank_lines(files: list[Path]) -> Iterator[_Line]:
    between = True
    for line in _by_file(files):
        between = between or line.opens
        if line.text.strip():
            yield line._replace(opens=between)
            between = False
        else:
            between = True


_UNITS = {"file": _by_file, "line": _by_line, "blank": _by_blank_lines}


class _Held:
    """The lines of a passage under way. `ended`: the line break behind the last line of a document is not its own."""

    def __init__(self, longest: int, ended: bool) -> None:
        self._longest, self._ended = longest, ended
        self._lines: list[str] = []
        self._size = 0
        self._begins = True

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)

    def may_end_before(self, line: str) -> bool:
        return self._size > self._longest and self._lines[-1].endswith("\n") and line[0].isalnum()

    def pause(self) -> Passage:
        """What is held but the last line break, with which the next passage begins."""
        passage = Passage("".join(self._lines)[:-1], self._begins, ends=False)
        self._lines, self._size, self._begins = ["\n"], 1, False
        return passage

    def close(self, *, ends: bool) -> Passage:
        """All that is held."""
        text = "".join(self._lines)
        passage = Passage(text.removesuffix("\n") if self._ended else text, self._begins, ends)
        self._lines, self._size, self._begins = [], 0, True
        return passage


def _bounds(config: TextConfig) -> tuple[int, int]:
    """The first character of the part and the one behind its last."""
    if config.begin == 0 and config.end == 1:
        return 0, sys.maxsize
    total = sum(len(line.text) for line in _by_file(config.files()))
    return int(total * config.begin), int(total * config.end)


def _chunks(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    chunk: list[Passage] = []
    size = 0
    for passage in passages:
        chunk.append(passage)
        size += len(passage.text) + 1
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
