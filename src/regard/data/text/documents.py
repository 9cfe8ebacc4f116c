"""Documents of a text: from one file or a folder of files, or from a range of its characters.

Each row of a table (.csv, .jsonl, .parquet …, and .tsv if a column is set) is a document.

Everything is streamed. A long document is read in passages of some thousand characters. Concatenated, they are the
document, and with our tokenizers they give the same ids: a passage ends before a line break that is followed by a
letter or digit, which no token spans.

A range is a fraction of the characters, line ends included: of n characters those from `int(n * begin)` to `int(n *
end)`, so ranges that share a boundary neither overlap nor leave a gap. If each file is one document, it is cut exactly
at that character (nanoGPT's `data[:int(n * 0.9)]`). Lines and paragraphs are not cut: each belongs to the range in
which it begins.
"""

import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from regard.config import ConfigError
from regard.data.source import Column, DataSource, NonEmpty
from regard.data.text.lines import check_file, read_lines, uncompressed_name, uncompressed_suffix
from regard.data.text.pairs import read_columns
from regard.data.text.records import choose_columns, is_records, read_records, record_files, text_of
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.errors import UserError
from regard.files import check_plain_file, file_sha256

Unit = Literal["file", "line", "paragraph"]

PASSAGE_LENGTH = 1 << 14
"""The minimum number of characters of a passage, if its document has more."""
_CHUNK = 1 << 20
"""Characters tokenized at once, on all threads."""


class TextConfig(DataSource):
    """A text: what counts as a document, and which range of it is read."""

    path: NonEmpty
    """A text file, compressed or not, or a folder of .txt files, which are read sorted by name; or a table with a text
    in each row: a .csv or .jsonl file, compressed or not, a .parquet file, a folder of such files, or one written by
    `datasets.save_to_disk`."""
    unit: Unit = "file"
    """What counts as a document: a file, a line, or a paragraph (the lines between blank lines). In a table, each row
    is one."""
    column: Column | None = None
    """The column of the text in a table, by name or number, or its key in a .jsonl file. By default the one named text,
    or the only one. A .tsv file is a table only if this is set."""
    begin: float = Field(default=0.0, ge=0, lt=1)
    """The start of the range, as a fraction of all characters: 0.9 for the last tenth."""
    end: float = Field(default=1.0, gt=0, le=1)
    """The end of the range, as a fraction of all characters."""

    file_keys: ClassVar[tuple[str, ...]] = ("begin", "end")

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.begin >= self.end:
            raise ConfigError("end", f"found {self.end}, but the range begins at {self.begin}; it must end after that.")
        return self

    def files(self) -> list[Path]:
        """The files to read, in order. They are read several times, so a pipe is refused."""
        (path,) = self.resolve(self.path)
        check_plain_file(path)
        if not path.is_dir():
            return [path]
        records = record_files(path)
        has_texts = any(uncompressed_suffix(file) == ".txt" for file in path.iterdir())
        return records if records and not has_texts else text_files(path)


class Passage(NamedTuple):
    """Part of a document."""

    text: str
    starts_document: bool
    """Whether it is the first passage of its document."""
    ends_document: bool
    """Whether the document ends here, and not only the passage or the range."""


@dataclass(frozen=True)
class TextCounts:
    """The size of a text; bytes are those of UTF-8."""

    documents: int
    characters: int
    bytes: int

    def __str__(self) -> str:
        return f"{_count(self.documents, 'document')} of {_count(self.characters, 'character')}"


def read_texts(config: TextConfig, *, skip: Collection[str] = ()) -> Iterator[str]:
    """The documents, one at a time, without those whose digest is in `skip`. An empty text is an error."""
    for passages in _documents(read_passages(config), skip):
        yield "".join(passage.text for passage in passages)


def document_digest(text: str) -> str:
    """A digest that is the same for documents that differ in letter case and spaces only."""
    return hashlib.sha256("".join(text.split()).casefold().encode()).hexdigest()


def without_documents(passages: Iterable[Passage], skip: Collection[str]) -> Iterator[Passage]:
    """The passages of the documents whose digest is not in `skip`."""
    return chain.from_iterable(_documents(passages, skip)) if skip else iter(passages)


def read_passages(config: TextConfig, min_length: int = PASSAGE_LENGTH) -> Iterator[Passage]:
    """The documents in passages: each ends at the first possible line after `min_length` characters, or with its
    document. An empty text is an error.
    """
    first, last = _bounds(config)
    files = config.files()
    in_rows = _is_table(files[0], config)
    cut_documents = config.unit == "file" and not in_rows
    buffer = _PassageBuffer(min_length, strip_line_end=not cut_documents and not in_rows)
    found = included = past_end = False
    for line in _by_row(files, config) if in_rows else _UNITS[config.unit](files):
        if line.starts_document:
            if buffer:
                yield buffer.end_document(complete=True)
            included = cut_documents or first <= line.offset < last
        text = line.text
        if cut_documents:
            past_end = line.offset + len(text) > last
            text = text[max(first - line.offset, 0) : max(last - line.offset, 0)]
        if included and text:
            found = True
            if buffer.can_end_before(text):
                yield buffer.end_passage()
            buffer.add(text)
        if past_end or (line.offset >= last and not included):
            break
    if buffer:
        yield buffer.end_document(complete=not past_end)
    if not found:
        where = "" if config.begin == 0 and config.end == 1 else f" between {config.begin} and {config.end} of it"
        raise UserError(f"{config.location}: there is no text{where}; at least one character is needed.")


def count_text(config: TextConfig) -> TextCounts:
    """Count the documents, characters and bytes of a text."""
    documents = characters = size = 0
    for passage in read_passages(config):
        documents += passage.starts_document
        characters += len(passage.text)
        size += len(passage.text.encode())
    return TextCounts(documents, characters, size)


def encode_passages(
    passages: Iterable[Passage], tokenizer: TextTokenizer, *, eos_id: int | None = None, by_document: bool = True
) -> Iterator[tuple[list[int]]]:
    """Ids as the items of a one-sided token store, with `eos_id` after each complete document.

    An item is a document, whose ids must fit into memory; or a passage (`by_document=False`) if document boundaries do
    not matter because rows are cut from the whole text, in which case the memory of one chunk is enough.
    """
    item: list[int] = []
    for chunk in _chunks(passages):
        for passage, ids in zip(chunk, tokenizer.encode_batch([passage.text for passage in chunk]), strict=True):
            if item and (passage.starts_document or not by_document):
                yield (item,)
                item = []
            item += ids
            if passage.ends_document and eos_id is not None:
                item.append(eos_id)
    if item:
        yield (item,)


def text_fingerprint(config: TextConfig) -> str:
    """SHA-256 over the files' bytes and the settings that determine how they are read, wherever they are."""
    column = () if config.column is None else (config.column,)
    digest = hashlib.sha256(repr((config.unit, config.begin, config.end, *column)).encode())
    for path in config.files():
        check_file(path)
        try:
            digest.update(f"{path.suffix.lower()} {file_sha256(path)}\n".encode())
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    return digest.hexdigest()


def text_files(folder: Path) -> list[Path]:
    """The .txt files of a folder, compressed or not, sorted by name, without hidden files and subfolders."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    files: dict[str, Path] = {}
    for path in paths:
        if uncompressed_suffix(path) == ".txt":
            if uncompressed_name(path) in files:
                raise UserError(
                    f"{path} and {files[uncompressed_name(path)].name} are two versions of the same text; remove one."
                )
            files[uncompressed_name(path)] = path
    if not files:
        raise UserError(f"{folder} has no .txt files to read.")
    return list(files.values())


class _Line(NamedTuple):
    """A line of a document with its line end, and its offset in characters from the start of the files."""

    offset: int
    text: str
    starts_document: bool


def _by_file(files: list[Path]) -> Iterator[_Line]:
    offset = 0
    for path in files:
        starts_document = True
        for text in read_lines(path, keepends=True):
            yield _Line(offset, text, starts_document)
            offset += len(text)
            starts_document = False


def _by_line(files: list[Path]) -> Iterator[_Line]:
    return (line._replace(starts_document=True) for line in _by_file(files) if line.text.strip())


def _by_paragraph(files: list[Path]) -> Iterator[_Line]:
    after_blank = True
    for line in _by_file(files):
        after_blank = after_blank or line.starts_document
        if line.text.strip():
            yield line._replace(starts_document=after_blank)
            after_blank = False
        else:
            after_blank = True


_ROLES = {"text": ("text", "content", "document", "sentence")}


def _is_table(path: Path, config: TextConfig) -> bool:
    """Whether each row is a document. A file with tabs may be a plain text too, so it is one unless a column is set."""
    return is_records(path) or (config.column is not None and uncompressed_suffix(path) == ".tsv")


def _by_row(files: list[Path], config: TextConfig) -> Iterator[_Line]:
    """The texts of a table; rows without a text are skipped."""
    offset = 0
    for text in chain.from_iterable(_column_of(path, config.column) for path in files):
        if text.strip():
            yield _Line(offset, text, starts_document=True)
            offset += len(text)


def _column_of(path: Path, given: Column | None) -> Iterator[str]:
    """The texts in a column of a table."""
    if given is not None and not is_records(path):
        return (text for (text,) in read_columns(path, (given,)))
    (column,) = choose_columns(path, None if given is None else (given,), _ROLES)
    return (text_of("" if value is None else value, column, where) for where, (value,) in read_records(path, (column,)))


_UNITS = {"file": _by_file, "line": _by_line, "paragraph": _by_paragraph}


class _PassageBuffer:
    """The lines of an unfinished passage. `strip_line_end`: a document's last line end is not part of it."""

    def __init__(self, min_length: int, strip_line_end: bool) -> None:
        self._min_length, self._strip_line_end = min_length, strip_line_end
        self._lines: list[str] = []
        self._size = 0
        self._starts_document = True

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)

    def can_end_before(self, line: str) -> bool:
        return self._size > self._min_length and self._lines[-1].endswith("\n") and line[0].isalnum()

    def end_passage(self) -> Passage:
        """The passage without its last line break, with which the next passage of the document begins."""
        passage = Passage("".join(self._lines)[:-1], self._starts_document, ends_document=False)
        self._lines, self._size, self._starts_document = ["\n"], 1, False
        return passage

    def end_document(self, *, complete: bool) -> Passage:
        """The last passage of a document, which is `complete` if the range does not end inside it."""
        text = "".join(self._lines)
        text = text.removesuffix("\n") if self._strip_line_end else text
        passage = Passage(text, self._starts_document, ends_document=complete)
        self._lines, self._size, self._starts_document = [], 0, True
        return passage


def _bounds(config: TextConfig) -> tuple[int, int]:
    """The range of characters: its first, and the one after its last."""
    if config.begin == 0 and config.end == 1:
        return 0, sys.maxsize
    files = config.files()
    lines = _by_row(files, config) if _is_table(files[0], config) else _by_file(files)
    total = sum(len(line.text) for line in lines)
    return int(total * config.begin), int(total * config.end)


def _documents(passages: Iterable[Passage], skip: Collection[str]) -> Iterator[list[Passage]]:
    """The passages of each document whose digest is not in `skip`."""

    def is_kept() -> bool:
        return not skip or document_digest("".join(passage.text for passage in document)) not in skip

    document: list[Passage] = []
    for passage in passages:
        if passage.starts_document and document:
            if is_kept():
                yield document
            document = []
        document.append(passage)
    if document and is_kept():
        yield document


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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
