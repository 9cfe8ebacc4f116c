"""Word vectors from counts: what rungs with `word_vectors` start from if no file is given.

Words are alike if they occur beside the same words. Counted within a window and weighted by their positive pointwise
mutual information, max(0, log p(w, c) / (p(w) p(c))), the neighbors of a word are a long vector; the truncated singular
value decomposition makes it short: U √Σ (Levy and Goldberg 2014, who show that word2vec factorizes such a matrix too).

Vectors of frequent words come out many times longer than others. As embeddings that are also the output projection,
they would make a model that is sure of wrong words before its first step, so all vectors have a length of 1, as random
embeddings have on average.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.text.corpus import Corpus
from regard.data.text.documents import read_texts
from regard.data.text.lines import read_lines
from regard.errors import UserError
from regard.interop.word_vectors import write_word_vectors
from regard.task.base import Recipe

WINDOW = 2
"""How many words before and after a word are its neighbors."""
MAX_WORDS = 20_000
"""The most frequent words get vectors; the others are ignored."""
_ITERATIONS = 4
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]+|_+")
"""Letters, digits, or punctuation marks, as the tokenizers of subwords split text."""


def ppmi_vectors(lines: Iterable[str], dimension: int) -> tuple[list[str], Tensor]:
    """The words of a text, the most frequent first, and their vectors, of length 1.  # (words, dimension)"""
    sentences = [_WORD.findall(line) for line in lines]
    counts = Counter(word for sentence in sentences for word in sentence)
    words = [word for word, _ in counts.most_common(MAX_WORDS)]
    if len(words) < 2:
        raise UserError(f"word_vectors: the text has {len(words)} distinct words; at least 2 are needed for vectors.")
    matrix = _ppmi(_neighbor_counts(sentences, {word: number for number, word in enumerate(words)}), len(words))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        u, s, _ = torch.svd_lowrank(matrix, q=min(dimension, len(words)), niter=_ITERATIONS)
    vectors = torch.nn.functional.normalize(u * s.sqrt(), dim=1)  # (words, at most dimension)
    return words, torch.nn.functional.pad(vectors, (0, dimension - vectors.shape[1]))


def write_ppmi_vectors(recipe: Recipe, texts: Iterable[str], dimension: int, path: Path) -> None:
    """Write the vectors of the words of some files, or else of a recipe's own training text, unless they are there."""
    if not path.is_file():
        files = list(texts)
        lines = (line for file in files for line in read_lines(file)) if files else _training_lines(recipe)
        write_word_vectors(path, *ppmi_vectors(lines, dimension))


def _training_lines(recipe: Recipe) -> Iterator[str]:
    """The training text of a recipe: of pairs, both sides."""
    train: Any = recipe.data.train
    if recipe.task == "translation":
        for pair in Corpus("train", train).read():
            yield from pair
    else:
        for source in train:
            for passage in read_texts(source):
                yield from passage.splitlines()


def _neighbor_counts(sentences: Iterable[list[str]], ids: dict[str, int]) -> Counter[tuple[int, int]]:
    """How often two words are within the window of each other, in both directions."""
    counts: Counter[tuple[int, int]] = Counter()
    for sentence in sentences:
        known = [ids[word] for word in sentence if word in ids]
        for distance in range(1, WINDOW + 1):
            counts.update(zip(known, known[distance:], strict=False))
            counts.update(zip(known[distance:], known, strict=False))
    return counts


def _ppmi(counts: Counter[tuple[int, int]], size: int) -> Tensor:
    """The positive pointwise mutual information of the counted pairs, as a sparse matrix.  # (size, size)"""
    indices = torch.tensor(list(counts), dtype=torch.int64).reshape(-1, 2).T  # (2, pairs)
    values = torch.tensor(list(counts.values()), dtype=torch.float64)  # (pairs,)
    totals = torch.zeros(size, dtype=torch.float64).index_add_(0, indices[0], values)  # (size,)
    information = (values * values.sum() / (totals[indices[0]] * totals[indices[1]])).log().clamp(min=0)
    return torch.sparse_coo_tensor(indices, information.float(), (size, size), check_invariants=True).coalesce()
