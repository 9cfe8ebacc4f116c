"""Documents as vectors: the mean of the vectors of their words, and whether documents of a genre lie together.

The silhouette of a document compares its mean distance to those of its own genre with that to the nearest other genre:
1 if its genre is compact and far from the others, 0 on a border, negative if another genre is nearer (Rousseeuw 1987).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.labels.labeled_texts import LabeledConfig, read_labeled
from regard.data.registry import get_dataset
from regard.data.text.lines import read_lines
from regard.data.text.words import WordsConfig, splitter
from regard.errors import UserError
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.model.before.word_vectors.neighbors import Vector, unit_rows
from regard.progress import counted

BROWN_GENRES = {
    "a": ("reportage", 44, "press"),
    "b": ("editorial", 27, "press"),
    "c": ("reviews", 17, "press"),
    "d": ("religion", 17, "general prose"),
    "e": ("hobbies", 36, "general prose"),
    "f": ("lore", 48, "general prose"),
    "g": ("belles lettres", 75, "general prose"),
    "h": ("government", 30, "general prose"),
    "j": ("learned", 80, "learned"),
    "k": ("general fiction", 29, "fiction"),
    "l": ("mystery", 24, "fiction"),
    "m": ("science fiction", 6, "fiction"),
    "n": ("adventure", 29, "fiction"),
    "p": ("romance", 29, "fiction"),
    "r": ("humor", 9, "fiction"),
}
"""The letter of each genre of the Brown corpus, its number of documents, and its category (Francis and Kučera 1979)."""


@dataclass(frozen=True)
class LabeledDocument:
    """A document, what it is called, and its genre."""

    name: str
    genre: str
    text: str


def brown_documents(*, broad: bool = False) -> Iterator[LabeledDocument]:
    """The 500 documents of the Brown corpus with their genres, or with the four broad categories of these."""
    names = [
        (f"c{letter}{number:02}", category if broad else genre)
        for letter, (genre, count, category) in BROWN_GENRES.items()
        for number in range(1, count + 1)
    ]
    path = get_dataset("brown") / "brown.txt.gz"
    texts = list(_paragraphs(read_lines(path)))
    if len(texts) != len(names):
        raise UserError(f"{path} has {len(texts)} documents, but the Brown corpus has {len(names)}; restore the file.")
    for (name, genre), text in zip(names, texts, strict=True):
        yield LabeledDocument(name, genre, text)


def labeled_documents(path: Path) -> Iterator[LabeledDocument]:
    """The labeled texts of a table or a folder, named by their first words."""
    for text, label in read_labeled(LabeledConfig(path=str(path))):
        beginning = " ".join(text[:200].split())
        yield LabeledDocument(beginning if len(beginning) <= 48 else f"{beginning[:47]}…", label, text)


def document_vectors(
    keyed: KeyedVectors, documents: Iterable[LabeledDocument]
) -> tuple[list[LabeledDocument], Vector, float]:
    """The documents that have known words, the mean vector of these for each, and the share of all words that is known.

    A word that is only known in lower case counts as that.  # (documents, dimension)
    """
    split = splitter(WordsConfig(lowercase=False))
    kept, means = [], []
    total = known = 0
    for document in counted(documents, "Reading documents", "documents"):
        words = split(document.text)
        rows = [row for word in words if (row := keyed.ids.get(word, keyed.ids.get(word.lower(), -1))) >= 0]
        total, known = total + len(words), known + len(rows)
        if rows:
            distinct, counts = np.unique(rows, return_counts=True)
            kept.append(document)
            means.append(counts @ np.asarray(keyed.vectors[distinct], dtype=np.float32) / len(rows))
    if not kept:
        raise UserError(f"{keyed.name}: there are vectors for none of the {total:,} words of the documents.")
    return kept, np.array(means, dtype=np.float32), known / total


def silhouettes(vectors: NDArray[np.floating], labels: Sequence[str]) -> NDArray[np.float64]:
    """The silhouette of each vector by its cosine distances; 0 for the only one of its label.  # (n,)"""
    names, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise UserError(f"Silhouettes compare labels with each other; all {len(labels)} documents have the same.")
    units = unit_rows(vectors)
    sums = np.stack([units[numbers == number].sum(axis=0) for number in range(len(names))])
    # The sum of 1 − cosine over a label needs only the sum of its unit vectors; a vector's own distance is 0.
    totals = sizes - (units @ sums.T).astype(np.float64)  # (n, labels)
    each = np.arange(len(units))
    own = totals[each, numbers] / np.maximum(sizes[numbers] - 1, 1)
    means = totals / sizes
    means[each, numbers] = np.inf
    nearest = means.min(axis=1)
    found: NDArray[np.float64] = (nearest - own) / np.maximum(np.maximum(own, nearest), 1e-12)
    return np.where(sizes[numbers] > 1, found, 0.0)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Texts between empty lines."""
    text: list[str] = []
    for line in lines:
        if line.strip():
            text.append(line)
        elif text:
            yield "\n".join(text)
            text = []
    if text:
        yield "\n".join(text)
