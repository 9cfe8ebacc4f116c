"""What all models of static word vectors have: a vector for each word, whatever they learned it from."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.model.before.word_vectors.config import StaticVectorsConfig
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors, Vector


class StaticVectors(nn.Module):
    """Tables of vectors. A subclass says what the vector of a word is."""

    def __init__(self, config: StaticVectorsConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @torch.no_grad()
    def word_vectors(self, words: Sequence[str]) -> Vector:
        """The vectors of the vocabulary, whose words are given in the order of their ids.  # (words, width)"""
        raise NotImplementedError

    def compose(self, word: str) -> Vector | None:
        """The vector of a word that is not in the vocabulary; None if the model has nothing to make it of."""
        return None

    def keyed_vectors(
        self, words: Sequence[str], *, counts: NDArray[np.int64] | None = None, name: str = ""
    ) -> KeyedVectors:
        """The vectors by word."""
        return KeyedVectors(words, self.word_vectors(words), counts=counts, compose=self.compose, name=name)

    def forward(self, ids: Tensor) -> Tensor:
        """The input vectors of words, by id.  # (…, width)"""
        raise NotImplementedError
