"""GloVe: vectors whose dot products are the logarithms of how often words occur together (Pennington et al. 2014).

Every word i has a vector w and a bias b, and another vector u and bias for when it is the context of a word. For each
pair that occurs together X times the loss is

    J = f(X) · (w_i·u_j + b_i + b_j − log X)²,    f(X) = min(X / x_max, 1)^power

so that log P(j|i) = log X_ij − log X_i becomes linear in the vectors, and a ratio of two probabilities a difference of
vectors. Pairs that never occur have no loss.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.model.before.word_vectors.config import GloveConfig
from regard.model.before.word_vectors.keyed_vectors import Vector
from regard.model.before.word_vectors.static_vectors import StaticVectors


class Glove(StaticVectors):
    """Two tables of vectors with biases; the vector of a word is the sum of its rows in both."""

    config: GloveConfig

    def __init__(self, config: GloveConfig) -> None:
        super().__init__(config)
        bound = 0.5 / config.width

        def table(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.word_table, self.context_table = (table(config.vocab_size, config.width) for _ in range(2))
        self.word_bias, self.context_bias = (table(config.vocab_size) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        return self.word_table[ids] + self.context_table[ids]

    def residual(self, words: Tensor, contexts: Tensor, counts: Tensor) -> Tensor:
        """w_i·u_j + b_i + b_j − log X of each pair.  # (pairs,)"""
        products = (self.word_table[words] * self.context_table[contexts]).sum(dim=-1)
        return products + self.word_bias[words] + self.context_bias[contexts] - counts.log()

    def weight(self, counts: Tensor) -> Tensor:
        """f(X): how much a pair counts in the loss.  # (pairs,)"""
        if not self.config.x_max:
            return torch.ones_like(counts)
        return (counts / self.config.x_max).clamp(max=1) ** self.config.power

    def loss(self, words: Tensor, contexts: Tensor, counts: Tensor) -> Tensor:
        """J of each pair.  # (pairs,)"""
        return self.weight(counts) * self.residual(words, contexts, counts) ** 2

    @torch.no_grad()
    def word_vectors(self, words: Sequence[str]) -> Vector:
        found: Vector = (self.word_table + self.context_table).float().cpu().numpy()
        return found
