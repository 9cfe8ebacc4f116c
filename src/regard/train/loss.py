"""How far a model's scores are from the words that came.

A loss is kept as a sum and a count, never as a mean: micro-batches, gradient accumulation and several processes each
see another number of words, and only sums can be put together without giving some words more weight than others.
"""

from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from regard.config import Config


class LossConfig(Config):
    """How the model's scores are judged in training."""

    smoothing: float = Field(default=0.1, ge=0, lt=1)
    """The share of certainty that is spread over all words (Vaswani et al. 2017, §5.4)."""
    consistency: float = Field(default=0.0, ge=0)
    """How much two passes with different dropout must agree: α of R-Drop (Liang et al. 2021, eq. 4). 0 is one pass."""


@dataclass(frozen=True)
class Loss:
    """Sums over words: `total` is what is trained on, `plain` the same without smoothing (for perplexity)."""

    total: Tensor
    plain: Tensor
    count: Tensor

    @property
    def mean(self) -> Tensor:
        return self.total / self.count.clamp(min=1)

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(self.total + other.total, self.plain + other.plain, self.count + other.count)


def word_loss(logits: Tensor, words: Tensor, lengths: Tensor | None = None, smoothing: float = 0.0) -> Loss:
    """Cross-entropy of each row's first `lengths` words (all, if not given), in float32.

    logits: # (batch, tokens, vocabulary); words: # (batch, tokens); lengths: # (batch,)

    With smoothing ε the wanted distribution is 1 − ε for the word that came and ε spread over all words, that one
    included (Szegedy et al. 2016; Vaswani et al. 2017, §5.4).
    """
    scores = logits.float().flatten(0, 1)  # (batch · tokens, vocabulary)
    real = _real(words, lengths).flatten()
    log_total = scores.logsumexp(dim=-1)
    plain = log_total - scores.gather(1, words.flatten()[:, None])[:, 0]
    # −Σ log p / V, without a second tensor as large as the scores.
    spread = log_total - scores.mean(dim=-1) if smoothing else plain
    smoothed = plain + smoothing * (spread - plain)
    count = real.sum()
    total, plain_total = (torch.where(real, each, 0.0).sum() for each in (smoothed, plain))
    return Loss(total, plain_total.detach(), count)


def consistent_word_loss(
    logits: Tensor, words: Tensor, lengths: Tensor | None, smoothing: float, consistency: float
) -> Loss:
    """The loss of two passes over the same rows, and how far they differ (R-Drop, Liang et al. 2021).

    logits: # (2 · batch, tokens, vocabulary), the second pass behind the first; words: # (batch, tokens)

    Half of the paper's ℒ, so that its size compares with one pass: the mean of both cross-entropies plus α/4 times the
    two Kullback–Leibler divergences, whose sum is Σ (p − q)(log p − log q).
    """
    both = None if lengths is None else lengths.repeat(2)
    loss = word_loss(logits, words.repeat(2, 1), both, smoothing)
    first, second = logits.float().log_softmax(dim=-1).chunk(2)  # (batch, tokens, vocabulary)
    apart = ((first.exp() - second.exp()) * (first - second)).sum(dim=-1)  # (batch, tokens)
    apart_total = torch.where(_real(words, lengths), apart, 0.0).sum()
    return Loss(loss.total / 2 + consistency / 4 * apart_total, loss.plain / 2, loss.count // 2)


def _real(words: Tensor, lengths: Tensor | None) -> Tensor:
    """Which words are not padding.  # (batch, tokens)"""
    if lengths is None:
        return torch.ones_like(words, dtype=torch.bool)
    return torch.arange(words.shape[1], device=words.device) < lengths[:, None]
