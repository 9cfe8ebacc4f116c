"""Word vectors in the text format of word2vec and GloVe: a word and its numbers per line.

word2vec writes a header with the number of words and of dimensions; GloVe writes none. Files have millions of words,
so they are read line by line, and only the vectors of wanted words are kept. A word may contain spaces, as a few of
GloVe's do, so the numbers are counted from the end of a line.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from regard.data.text.lines import read_lines
from regard.errors import UserError
from regard.files import write_text


def read_word_vectors(path: str | Path, wanted: Collection[str] | None = None) -> tuple[dict[str, Tensor], int]:
    """The vectors of the wanted words that a file has (all words, if None), and their dimension.

    Vectors are float32,  # (dimension,). Of a word that occurs twice, the first vector counts.
    """
    path = Path(path)
    lines, dimension = _lines_and_dimension(path)
    found: dict[str, Tensor] = {}
    for number, line in lines:
        word, *numbers = line.rsplit(" ", dimension)
        if len(numbers) < dimension:
            raise UserError(
                f"{path}, line {number}: found {len(numbers)} numbers after the word, but the first vector has "
                f"{dimension}; is the file complete?"
            )
        if (wanted is None or word in wanted) and word not in found:
            found[word] = torch.tensor([_number(each, path, number) for each in numbers])
    return found, dimension


def word_vector_dimension(path: str | Path) -> int:
    """The dimension of the vectors in a file, from its first lines."""
    return _lines_and_dimension(Path(path))[1]


def write_word_vectors(path: Path, words: Sequence[str], vectors: Tensor) -> None:
    """Write vectors with a header, as word2vec does.  vectors: # (words, dimension)"""
    rows = (" ".join(f"{value:.6g}" for value in row) for row in vectors.tolist())
    lines = (f"{word} {row}\n" for word, row in zip(words, rows, strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(chain([f"{len(words)} {vectors.shape[1]}\n"], lines)))


def _lines_and_dimension(path: Path) -> tuple[Iterator[tuple[int, str]], int]:
    """The numbered lines with vectors, and the dimension that the header or the first of them says."""
    lines = _numbered(read_lines(path))
    first = next(lines, None)
    if first is None:
        raise UserError(f"{path} is empty; a file of word vectors has a word and its numbers per line.")
    number, line = first
    fields = line.split(" ")
    if len(fields) == 2 and all(field.isascii() and field.isdigit() for field in fields) and int(fields[1]):
        return lines, int(fields[1])
    if len(fields) < 2:
        raise UserError(f"{path}, line {number}: found {line[:40]!r}; expected a word and its numbers.")
    dimension = 0
    while dimension < len(fields) - 1 and _is_number(fields[-1 - dimension]):
        dimension += 1
    if not dimension:
        _number(fields[-1], path, number)
    return chain([first], lines), dimension


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, without spaces at their end, which word2vec writes."""
    for number, line in enumerate(lines, start=1):
        if stripped := line.rstrip(" \t").replace("\t", " "):
            yield number, stripped


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _number(text: str, path: Path, line: int) -> float:
    if not _is_number(text):
        raise UserError(f"{path}, line {line}: found {text[:40]!r}, which is not a finite number.")
    return float(text)
