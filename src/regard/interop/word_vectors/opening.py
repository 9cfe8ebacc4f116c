"""Opening a file of word vectors, whatever its format.

A small file is read into memory. A large one is converted once, in bounded memory, to a safetensors file in the cache
folder, and memory-mapped from then on; a safetensors file is mapped as it is.
"""

import hashlib
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.data.registry import cache_folder, locked_folder
from regard.data.text.lines import COMPRESSED, check_file
from regard.errors import UserError
from regard.files import new_folder
from regard.interop.word_vectors.binary import read_binary
from regard.interop.word_vectors.blocks import VectorReader
from regard.interop.word_vectors.detection import detect_format
from regard.interop.word_vectors.tensors import TensorsWriter, open_tensors, read_tensor_blocks
from regard.interop.word_vectors.text import read_text
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.run.locate import note

LARGE = 1 << 26
"""Bytes of a file from which on it is converted once instead of being read each time; compressed, a quarter of that."""
_CONVERTED = "vectors.safetensors"


def open_word_vectors(path: str | Path, log: Callable[[str], None] = note) -> KeyedVectors:
    """All vectors of a file, in the order of the file."""
    path = Path(path)
    check_file(path)
    if detect_format(path) == "safetensors":
        return open_tensors(path)
    if path.stat().st_size >= (LARGE // 4 if path.suffix.lower() in COMPRESSED else LARGE):
        return open_tensors(_converted(path, log), check=False, name=str(path))
    reader = _reader(path, log)
    blocks = list(reader.blocks)
    words = [word for block in blocks for word in block.words]
    _check_words(path, words)
    return KeyedVectors(words, np.concatenate([block.vectors for block in blocks]), name=str(path))


def read_word_vectors(
    path: str | Path, wanted: Collection[str] | None = None, log: Callable[[str], None] = note
) -> tuple[dict[str, Tensor], int]:
    """The vectors of the wanted words that a file has (all words, if None), and their dimension.

    Vectors are float32,  # (dimension,). Of a word that occurs twice, the first vector counts.
    """
    path = Path(path)
    check_file(path)
    reader = _reader(path, log, wanted)
    found: dict[str, Tensor] = {}
    for words, vectors in reader.blocks:
        for word, vector in zip(words, vectors, strict=True):
            if wanted is None or word in wanted:
                found[word] = torch.from_numpy(vector.copy())
    return found, reader.dimension


def word_vector_dimension(path: str | Path) -> int:
    """The dimension of the vectors in a file, from its beginning."""
    path = Path(path)
    check_file(path)
    if detect_format(path) == "safetensors":
        return open_tensors(path, check=False).dimension
    return _reader(path, note).dimension


def _reader(path: Path, log: Callable[[str], None], wanted: Collection[str] | None = None) -> VectorReader:
    match detect_format(path):
        case "text":
            return read_text(path, log, wanted)
        case "binary":
            return read_binary(path, log)
        case "safetensors":
            return read_tensor_blocks(path)


def _converted(path: Path, log: Callable[[str], None]) -> Path:
    """The safetensors file in the cache with the vectors of another file, which is recognized by its name and date."""
    stat = path.stat()
    key = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    folder = cache_folder() / "vectors"
    target = folder / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with locked_folder(folder):
        if not (target / _CONVERTED).is_file():
            log(f"{path} is read once and kept in {folder}, from where it opens at once; `regard cache` can remove it.")
            reader = _reader(path, log)
            with new_folder(target, replace=True) as unfinished:
                with TensorsWriter(unfinished / _CONVERTED, reader.dimension) as writer:
                    for block in reader.blocks:
                        writer.add(block.words, block.vectors)
                _check_words(path, writer.words)
    return target / _CONVERTED


def _check_words(path: Path, words: Collection[str]) -> None:
    if not words:
        raise UserError(f"{path} has no vectors; a file of word vectors has a word and its numbers per line.")
