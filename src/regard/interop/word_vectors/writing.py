"""Writing word vectors for other programs, and taking over those of other programs."""

import re
from collections.abc import Callable
from pathlib import Path

from regard.errors import UserError
from regard.files import check_output
from regard.interop.word_vectors.binary import write_binary
from regard.interop.word_vectors.opening import open_word_vectors
from regard.interop.word_vectors.tensors import write_tensor_vectors
from regard.interop.word_vectors.text import write_text_vectors
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors

VECTOR_FORMATS: dict[str, Callable[[Path, KeyedVectors], None]] = {
    "word2vec": lambda path, keyed: write_text_vectors(path, keyed.words, keyed.vectors, header=True),
    "word2vec-binary": lambda path, keyed: write_binary(path, keyed.words, keyed.vectors),
    "glove": lambda path, keyed: write_text_vectors(path, keyed.words, keyed.vectors, header=False),
    "safetensors": lambda path, keyed: write_tensor_vectors(path, keyed.words, keyed.vectors, keyed.counts),
}
"""How each format is written. The text of word2vec is also that of fastText's .vec."""
_WITH_SPACES = ("safetensors",)
"""Formats that can have a word with a space in it; other programs would take the space for the end of the word."""


def export_word_vectors(keyed: KeyedVectors, target: str, out: Path | str) -> str:
    """Write word vectors in a format; returns a sentence about it. A name that ends with .gz or .xz compresses text."""
    out = Path(out)
    if out.exists():
        raise UserError(f"{out} exists already; choose another file, or remove it first.")
    check_output(out)
    pattern = re.compile(r"[\n]" if target in _WITH_SPACES else r"[ \t\n\r]")
    refused = next((word for word in keyed.words if not word or pattern.search(word)), None)
    if refused is not None:
        raise UserError(
            f"{keyed.name or 'The vectors'}: the word {refused!r} has {'a space in it' if refused else 'no letters'}, "
            f"which a file of the format {target} cannot hold; export to safetensors instead."
        )
    VECTOR_FORMATS[target](out, keyed)
    return f"exported {_describe(keyed)} as {target}."


def import_word_vectors(path: Path | str, out: Path | str) -> str:
    """Convert a file of word vectors to safetensors, which opens at once; returns a sentence about it."""
    out = Path(out)
    if out.suffix != ".safetensors":
        raise UserError(f"{path} has word vectors, which are imported as one file; let {out} end with .safetensors.")
    keyed = open_word_vectors(path)
    export_word_vectors(keyed, "safetensors", out)
    return f"imported {_describe(keyed)}."


def _describe(keyed: KeyedVectors) -> str:
    return f"{len(keyed):,} word vectors of dimension {keyed.dimension:,}"
