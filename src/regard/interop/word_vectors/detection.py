"""Which format a file of word vectors has. Its content tells; names such as .bin and .txt are used for several."""

import re
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Literal

from regard.data.text.lines import COMPRESSED, open_decompressed
from regard.errors import UserError
from regard.files import check_plain_file

Format = Literal["text", "binary", "safetensors"]

HEADER = re.compile(rb"([0-9]{1,18}) ([0-9]{1,9})[ \t]*\r?\n")
"""The first line of word2vec's formats: the number of words and of dimensions."""
_BEGINNING = 1 << 16
_FASTTEXT = struct.pack("<i", 793712314)
_ARCHIVES = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x1f\x8b": "compressed by gzip; let its name end with .gz",
    b"\xfd7zXZ": "compressed by xz; let its name end with .xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; let its name end with .zst",
    b"\x93NUMPY": "an array without words; save the words with it, in one of the formats of word2vec",
    _FASTTEXT: "a model of fastText; use the file of vectors that stands beside it and ends with .vec",
}


def detect_format(path: Path) -> Format:
    """The format of a file, from its first bytes; a file of another kind is refused."""
    check_plain_file(path)
    with ExitStack() as stack:
        try:
            start = open_decompressed(path, stack).read(_BEGINNING)
        except (OSError, EOFError) as error:
            raise UserError(f"{path} cannot be read: {error}.") from None
    if not start:
        raise UserError(f"{path} is empty; a file of word vectors has a word and its numbers per line.")
    for magic, advice in _ARCHIVES.items():
        if start.startswith(magic):
            raise UserError(f"{path} is {advice}.")
    if _is_pickle(start):
        raise UserError(
            f"{path} is a pickle, as gensim's save() writes it; a pickle can run any code when it is opened, so it is "
            "not read. Save the vectors with gensim's save_word2vec_format()."
        )
    if start[8:9] == b"{" and len(start) >= 10 and int.from_bytes(start[:8], "little") < 100_000_000:
        return "safetensors"
    header = HEADER.match(start)
    return "binary" if header and _is_binary(start[header.end() :], int(header[2])) else "text"


def is_vector_file(path: Path) -> bool:
    """Whether a file may be one of word vectors, rather than, say, an ARPA file, which begins with its counts."""
    if path.suffix.lower() == ".arpa" or path.name.lower().endswith(tuple(f".arpa{end}" for end in COMPRESSED)):
        return False
    with ExitStack() as stack:
        try:
            start = open_decompressed(path, stack).read(_BEGINNING)
        except (OSError, EOFError):
            return True
    return rb"\data" not in start and rb"\1-grams" not in start


def looks_like_vectors(path: Path) -> bool:
    """Whether a file has word vectors rather than sentences: its first line is a header, or ends with numbers."""
    try:
        if detect_format(path) != "text":
            return True
    except UserError:
        return False
    with ExitStack() as stack:
        line = open_decompressed(path, stack).readline(_BEGINNING)
    fields = line.split()
    return HEADER.match(line) is not None or (len(fields) > 2 and all(map(_is_number, fields[1:])))


def read_header(file: BinaryIO, path: Path) -> tuple[int, int]:
    """The numbers of words and of dimensions at the start of a binary file."""
    found = HEADER.match(file.readline(64))
    if found is None or not int(found[2]):
        raise UserError(f"{path}: byte 1: expected the number of words and of dimensions, in one line.")
    return int(found[1]), int(found[2])


def _is_binary(rows: bytes, dimension: int) -> bool:
    """Whether what follows a header are bytes of floats: the first line does not end with as many numbers, and some
    bytes occur in no text."""
    fields = rows.partition(b"\n")[0].split()
    if len(fields) > dimension and all(map(_is_number, fields[-dimension:] if dimension else [])):
        return False
    return bool(re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", rows)) or not _is_utf8(rows)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(data) - 3  # a character that the end cuts
    return True


def _is_pickle(start: bytes) -> bool:
    """Whether bytes begin as a pickle does: with the opcode PROTO and the version of the protocol."""
    return start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
