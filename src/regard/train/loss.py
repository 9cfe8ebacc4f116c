"""How far a model's scores are from the words that came.

A loss is kept as a sum and a count, never as a mean: micro-batches, gradient accumulation and several processes each
see another number of words, and only sums can be put together without giving some words more weight than others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


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


def _real(words: Tensor, lengths: Tensor | None) -> Tensor:
    """Which words are not padding.  # (batch, tokens)"""
    if lengths is None:
        return torch.ones_like(words, dtype=torch.bool)
    return torch.arange(words.shape[1], device=words.device) < lengths[:, None]
