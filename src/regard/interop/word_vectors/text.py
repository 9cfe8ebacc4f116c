"""Word vectors as text: a word and its numbers per line, separated by spaces.

word2vec and fastText (.vec) write a header with the number of words and of dimensions; GloVe writes none. Lines are
read one by one and their numbers parsed in blocks. A word may contain spaces, as a few of GloVe's do, so the numbers
are counted from the end of a line.
"""

import gzip
import io
import lzma
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.data.text.lines import read_lines
from regard.errors import UserError
from regard.files import new_file
from regard.interop.word_vectors.blocks import BLOCK_NUMBERS, Distinct, VectorBlock, VectorReader
from regard.progress import phase

_Line = tuple[int, str]


def read_text(path: Path, log: Callable[[str], None], wanted: Collection[str] | None = None) -> VectorReader:
    """The vectors of a text file, or of the wanted words only."""
    lines, dimension, announced = _lines_and_dimension(path)
    return VectorReader(dimension, _blocks(path, lines, dimension, announced, log, wanted))


def write_word_vectors(path: Path, words: Sequence[str], vectors: Tensor) -> None:
    """Write vectors with a header, as word2vec does.  vectors: # (words, dimension)"""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_vectors(path, words, vectors.detach().cpu().float().numpy(), header=True)


def write_text_vectors(path: Path, words: Sequence[str], vectors: NDArray[np.floating], *, header: bool) -> None:
    """Write a word and its numbers per line, compressed if the name ends with .gz or .xz. Each number is the shortest
    that gives the same float32 when it is read.  vectors: # (words, dimension)"""
    step = max(1, BLOCK_NUMBERS // vectors.shape[1])
    with (
        new_file(path) as unfinished,
        phase(f"Writing {path.name}", "words", len(words)) as progress,
        _open(unfinished, path.suffix) as file,
    ):
        if header:
            file.write(f"{len(words)} {vectors.shape[1]}\n")
        for start in range(0, len(words), step):
            rows = np.asarray(vectors[start : start + step], dtype=np.float32).astype(str).tolist()
            pairs = zip(words[start : start + step], rows, strict=True)
            file.writelines(f"{word} {' '.join(row)}\n" for word, row in pairs)
            progress.update(start + len(rows))


def _open(path: Path, suffix: str) -> Any:
    """A text file to write, compressed as its suffix says."""
    if suffix == ".gz":
        return io.TextIOWrapper(gzip.GzipFile(path, "wb", 6, mtime=0), encoding="utf-8", newline="\n")
    if suffix == ".xz":
        return lzma.open(path, "wt", encoding="utf-8", newline="\n")
    return path.open("w", encoding="utf-8", newline="\n")


def _lines_and_dimension(path: Path) -> tuple[Iterator[_Line], int, int | None]:
    """The numbered lines with vectors, the dimension that the header or the first of them says, and how many vectors
    the header announces."""
    lines = _numbered(read_lines(path))
    first = next(lines, None)
    if first is None:
        raise UserError(f"{path} is empty; a file of word vectors has a word and its numbers per line.")
    number, line = first
    fields = line.split(" ")
    if len(fields) == 2 and all(_is_count(field) for field in fields) and int(fields[1]):
        return lines, int(fields[1]), int(fields[0])
    if len(fields) < 2:
        raise UserError(f"{path}, line {number}: found {line[:40]!r}; expected a word and its numbers.")
    dimension = 0
    while dimension < len(fields) - 1 and _is_number(fields[-1 - dimension]):
        dimension += 1
    if not dimension:
        _number(fields[-1], path, number)
    return chain([first], lines), dimension, None


def _numbered(lines: Iterable[str]) -> Iterator[_Line]:
    """The lines that are not empty, without spaces at their end, which word2vec writes."""
    for number, line in enumerate(lines, start=1):
        if stripped := line.rstrip(" \t\r").replace("\t", " "):
            yield number, stripped


def _blocks(
    path: Path,
    lines: Iterable[_Line],
    dimension: int,
    announced: int | None,
    log: Callable[[str], None],
    wanted: Collection[str] | None,
) -> Iterator[VectorBlock]:
    distinct = Distinct()
    rows = max(1, BLOCK_NUMBERS // dimension)
    words: list[str] = []
    texts: list[_Line] = []
    count = 0
    with phase(f"Reading {path.name}", "vectors", announced) as progress:
        for count, (number, line) in enumerate(lines, start=1):
            word, numbers = _split(path, number, line, dimension)
            if (wanted is None or word in wanted) and distinct.is_new(word):
                words.append(word)
                texts.append((number, numbers))
                if len(words) == rows:
                    yield VectorBlock(words, _parsed(path, texts, dimension))
                    words, texts = [], []
            progress.update(count)
        if announced is not None and announced != count:
            raise UserError(
                f"{path}, line 1: the header announces {announced:,} words, but there are {count:,}; is it complete?"
            )
        if words:
            yield VectorBlock(words, _parsed(path, texts, dimension))
    distinct.report(str(path), log)


def _split(path: Path, number: int, line: str, dimension: int) -> tuple[str, str]:
    """The word of a line and the text of its numbers."""
    if line.count(" ") == dimension:
        word, _, numbers = line.partition(" ")
    else:
        word, *fields = line.rsplit(" ", dimension)
        numbers = " ".join(fields)
        if len(fields) < dimension:
            raise UserError(
                f"{path}, line {number}: found {len(fields)} numbers after the word, but the first vector has "
                f"{dimension}; is the file complete?"
            )
        if (last := word.rpartition(" ")[2]) != word and _is_number(last):
            raise UserError(
                f"{path}, line {number}: found more than the {dimension} numbers that a vector has in this file, after "
                f"{word[:40]!r}."
            )
    if not word:
        raise UserError(f"{path}, line {number}: the line begins with a space, so it has no word.")
    return word, numbers


def _parsed(path: Path, texts: Sequence[_Line], dimension: int) -> NDArray[np.float32]:
    """The numbers of some lines, parsed at once, or one by one to name the line that has something else."""
    try:
        rows: NDArray[np.float32] = np.loadtxt(
            [numbers for _, numbers in texts], dtype=np.float32, delimiter=" ", comments=None, ndmin=2
        )
    except ValueError:
        values = [[_number(one, path, line) for one in numbers.split(" ")] for line, numbers in texts]
        with np.errstate(over="ignore"):
            rows = np.array(values, dtype=np.float32)
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        line, numbers = texts[row]
        raise _not_finite(numbers.split(" ")[column], path, line)
    return rows.reshape(len(texts), dimension)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _number(text: str, path: Path, line: int) -> float:
    if not _is_number(text):
        raise _not_finite(text, path, line)
    return float(text)


def _not_finite(text: str, path: Path, line: int) -> UserError:
    return UserError(f"{path}, line {line}: found {text[:40]!r}, which is not a finite number.")
