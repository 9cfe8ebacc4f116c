"""Word vectors in one safetensors file: the array `vectors`, and the words as the bytes of a text, a word per line.

The array is memory-mapped when the file is opened, so that a file of any size opens at once and only the rows that are
asked for are read. Any safetensors reader can open it. A file of another program, which has no words in it, is read
with the vocabulary.tsv that stands beside it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.data.text.vocabulary import VOCABULARY, Vocabulary
from regard.errors import UserError
from regard.files import new_file
from regard.interop.word_vectors.blocks import BLOCK_NUMBERS, VectorBlock, VectorReader
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.run.tensors import unusable_reason

_VECTORS, _WORDS, _COUNTS = "vectors", "words", "counts"
_HEADER = 512
"""Bytes reserved for the header, which is written last."""


def open_tensors(path: Path, *, check: bool = True, name: str = "") -> KeyedVectors:
    """The vectors of a safetensors file, memory-mapped. Without `check`, the numbers are not read, only mapped."""
    tensors = _read(path)
    table = _table(path, tensors)
    if check and (reason := unusable_reason(table)) is not None:
        raise UserError(f"{path}: the tensor {_VECTORS!r} {reason}.")
    array = (table.float() if table.dtype == torch.bfloat16 else table).numpy()
    words: Sequence[str]
    if _WORDS in tensors:
        words, counts = _words(path, tensors[_WORDS]), _counts(path, tensors.get(_COUNTS), len(table))
    else:
        words, counts = _vocabulary_beside(path)
    if len(words) != len(table):
        raise UserError(f"{path}: there are {len(table):,} vectors, but {len(words):,} words; restore it from a copy.")
    keyed = KeyedVectors(words, array, counts=counts, name=name or str(path))
    if len(keyed.ids) != len(words):
        repeated = next(word for row, word in enumerate(words) if keyed.ids[word] != row)
        raise UserError(f"{path}: the word {repeated!r} stands there twice; remove one of its vectors.")
    return keyed


def read_tensor_blocks(path: Path) -> VectorReader:
    """The same in blocks, as the other formats are read."""
    keyed = open_tensors(path)
    step = max(1, BLOCK_NUMBERS // keyed.dimension)

    def blocks() -> Iterator[VectorBlock]:
        for start in range(0, len(keyed), step):
            rows = np.asarray(keyed.vectors[start : start + step], dtype=np.float32)
            yield VectorBlock(list(keyed.words[start : start + step]), rows)

    return VectorReader(keyed.dimension, blocks())


def write_tensor_vectors(
    path: Path, words: Sequence[str], vectors: NDArray[np.floating], counts: NDArray[np.int64] | None = None
) -> None:
    """Write vectors, their words and, if they are known, their counts.  vectors: # (words, dimension)"""
    step = max(1, BLOCK_NUMBERS // vectors.shape[1])
    with new_file(path) as unfinished, TensorsWriter(unfinished, vectors.shape[1], counts) as writer:
        for start in range(0, len(words), step):
            writer.add(words[start : start + step], np.asarray(vectors[start : start + step]))


class TensorsWriter:
    """Writes a file row by row, so that no more than a block of them is in memory."""

    def __init__(self, path: Path, dimension: int, counts: NDArray[np.int64] | None = None) -> None:
        self.dimension, self.counts = dimension, counts
        self.words: list[str] = []
        self._file = path.open("wb")

    def __enter__(self) -> Self:
        self._file.write(b" " * (8 + _HEADER))
        if self.counts is not None:  # first, because they are aligned to 8 bytes
            self._file.write(self.counts.astype("<i8").tobytes())
        return self

    def add(self, words: Iterable[str], vectors: NDArray[np.floating]) -> None:
        """Append some words and their vectors.  # (words, dimension)"""
        self.words.extend(words)
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if error is None:
                self._finish()

    def _finish(self) -> None:
        text = "\n".join(self.words).encode("utf-8")
        self._file.write(text)
        place, header = 0, {}
        shapes: dict[str, tuple[str, list[int], int]] = {}
        if self.counts is not None:
            shapes[_COUNTS] = ("I64", [len(self.words)], 8)
        shapes[_VECTORS] = ("F32", [len(self.words), self.dimension], 4)
        shapes[_WORDS] = ("U8", [len(text)], 1)
        for name, (dtype, shape, size) in shapes.items():
            end = place + size * int(np.prod(shape))
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, end]}
            place = end
        written = json.dumps({"__metadata__": {"format": "pt"}} | header).encode().ljust(_HEADER)
        self._file.seek(0)
        self._file.write(_HEADER.to_bytes(8, "little") + written)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or truncated ({error}); restore it from a copy.") from None


def _table(path: Path, tensors: dict[str, Tensor]) -> Tensor:
    """The tensor of vectors: the one of that name, or the only one that can be."""
    named = tensors.get(_VECTORS)
    tables = [named] if named is not None else [one for one in tensors.values() if one.ndim == 2]
    if len(tables) != 1 or tables[0].ndim != 2 or not tables[0].numel() or not tables[0].is_floating_point():
        raise UserError(
            f"{path}: expected a tensor {_VECTORS!r} with a row of numbers per word; its tensors are "
            f"{', '.join(sorted(tensors)) or 'none'}."
        )
    return tables[0]


def _words(path: Path, stored: Tensor) -> list[str]:
    if stored.dtype != torch.uint8 or stored.ndim != 1:
        raise UserError(f"{path}: the tensor {_WORDS!r} is not a text (uint8); restore it from a copy.")
    try:
        return stored.numpy().tobytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start + 1:,} of the tensor {_WORDS!r} is not UTF-8.") from None


def _counts(path: Path, stored: Tensor | None, words: int) -> Any:
    if stored is None:
        return None
    if stored.dtype != torch.int64 or stored.shape != (words,):
        raise UserError(f"{path}: the tensor {_COUNTS!r} has no whole number for each of {words:,} words.")
    return stored.numpy()


def _vocabulary_beside(path: Path) -> tuple[Sequence[str], NDArray[np.int64]]:
    beside = path.parent / VOCABULARY
    if not beside.is_file():
        raise UserError(f"{path} has no words, only vectors; put a {VOCABULARY} beside it, of words and their counts.")
    found = Vocabulary.load(beside)
    return found.words, found.counts
