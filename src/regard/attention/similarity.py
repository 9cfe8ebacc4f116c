"""How alike a query and a key are, before the softmax.

A similarity turns queries and keys into ones whose plain dot product, times `scale`, is the score. That form fits every
backend: none of them needs to know which similarity it computes.
"""

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as functional
from torch import Tensor


class Similarity(Protocol):
    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Queries, keys and a scale, such that the score is scale · (query · key)."""
        ...


@dataclass(frozen=True)
class ScaledDot:
    """q·k / √d_k (Vaswani et al. 2017, §3.2.1): the scores keep a spread of about 1 at any width."""

    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        return query, key, query.shape[-1] ** -0.5


@dataclass(frozen=True)
class Dot:
    """q·k, times a fixed `scale`: at 1, the first form in most lectures."""

    scale: float = 1.0

    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        return query, key, self.scale


class Cosine:
    """The cosine of the angle between query and key, times `scale`.

    Scores of at most 1 make a nearly even softmax, so a model learns a scale for each head (query–key normalisation,
    Henry et al. 2020): a tensor that broadcasts with (batch, heads, query, width).
    """

    def __init__(self, scale: float | Tensor = 1.0) -> None:
        self.scale = scale

    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
        if isinstance(self.scale, Tensor):
            return query * self.scale.to(query.dtype), key, 1.0
        return query, key, self.scale
