"""How far a model's scores are from the words that came.

A loss is kept as a sum and a count, never as a mean: micro-batches, gradient accumulation and several processes each
see another number of words, and only sums can be put together without giving some words more weight than others.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.config import Config
from regard.fast import triton_switch
from regard.fast.unscored import Unscored

_CELLS = {"cpu": 1 << 19, "cuda": 1 << 23}
"""Scores taken at once: about as many as a cache holds in float32."""
_FEW = 1 << 16
"""Scores up to which a compiled pass is not worth its start."""


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

    def also(self, each: Tensor | None) -> "Loss":
        """The same with something more to train on, so much for each word; `plain` stays what it is."""
        return self if each is None else Loss(self.total + each * self.count, self.plain, self.count)

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(self.total + other.total, self.plain + other.plain, self.count + other.count)


def word_loss(
    logits: Tensor | Unscored,
    words: Tensor,
    lengths: Tensor | None = None,
    smoothing: float = 0.0,
    *,
    overwrite: bool = False,
) -> Loss:
    """Cross-entropy of each row's first `lengths` words (all, if not given), in float32. Words below 0 do not count.

    logits: # (batch, tokens, vocabulary); words: # (batch, tokens); lengths: # (batch,)

    With smoothing ε the wanted distribution is 1 − ε for the word that came and ε spread over all words, that one
    included (Szegedy et al. 2016; Vaswani et al. 2017, §5.4). With `overwrite` the logits are not needed any more:
    their gradient may take their place. Words that are yet to be scored (see `Unscored`) are scored here, without
    padding and some at a time.
    """
    return _loss(logits, words, lengths, smoothing, 0.0, passes=1, overwrite=overwrite)


def consistent_word_loss(
    logits: Tensor | Unscored,
    words: Tensor,
    lengths: Tensor | None,
    smoothing: float,
    consistency: float,
    *,
    overwrite: bool = False,
) -> Loss:
    """The loss of two passes over the same rows, and how far they differ (R-Drop, Liang et al. 2021).

    logits: # (2 · batch, tokens, vocabulary), the second pass behind the first; words: # (batch, tokens)

    Half of the paper's ℒ, so that its size compares with one pass: the mean of both cross-entropies plus α/4 times the
    two Kullback–Leibler divergences, whose sum is Σ (p − q)(log p − log q).
    """
    return _loss(logits, words, lengths, smoothing, consistency, passes=2, overwrite=overwrite)


def _loss(
    logits: Tensor | Unscored,
    words: Tensor,
    lengths: Tensor | None,
    smoothing: float,
    consistency: float,
    *,
    passes: int,
    overwrite: bool,
) -> Loss:
    real, words = _real(words, lengths).flatten(), words.flatten().clamp(min=0)
    if isinstance(logits, Unscored):
        if passes == 1 and not consistency:
            return _late_loss(logits, words, real, smoothing)
        logits = logits.logits()
    scores = logits.reshape(passes, real.numel(), logits.shape[-1])
    if scores.is_cuda and scores.dtype != torch.float64 and has_triton():
        from regard.train.triton_loss import DeviceSums

        given = (scores, words, real, smoothing, consistency, overwrite)
        total, plain = DeviceSums.apply(*given)  # type: ignore[no-untyped-call]
        return Loss(total, plain, real.sum())
    if passes == 1 and scores.dtype == torch.float32 and not scores.is_cuda and scores.numel() > _FEW and has_numba():
        from regard.train.numba_loss import MadeSums

        counted = _checked(words, real, scores.shape[2]).masked_fill(~real, -1)
        total, plain = MadeSums.apply(scores[0], counted, smoothing, overwrite)  # type: ignore[no-untyped-call]
        return Loss(total, plain, real.sum())
    total, plain = _Sums.apply(scores, words, real, smoothing, consistency)  # type: ignore[no-untyped-call]
    return Loss(total, plain, real.sum())


def _late_loss(given: Unscored, words: Tensor, real: Tensor, smoothing: float) -> Loss:
    """words, real: # (rows,)"""
    x = given.x.flatten(0, 1)
    if triton_switch.runs_on(x.device):
        from regard.train.triton_loss import DeviceLateSums

        facts = (x, given.weight, given.bias, words, real, smoothing)
        total, plain = DeviceLateSums.apply(*facts)  # type: ignore[no-untyped-call]
        return Loss(total, plain, real.sum())
    from regard.fast.packed_training import even_cells
    from regard.train.numba_loss import LateSums

    words = _checked(words, real, len(given.weight))
    if not bool(real.all()):
        cells = even_cells(real)
        x, words = x.index_select(0, cells), words.masked_fill(~real, -1)[cells]
    asked = torch.is_grad_enabled()
    total, plain = LateSums.apply(x, given.weight, given.bias, words, smoothing, asked)  # type: ignore[no-untyped-call]
    return Loss(total, plain, real.sum())


def _checked(words: Tensor, real: Tensor, size: int) -> Tensor:
    """Words that are all in the vocabulary, where they are real: compiled passes look no further."""
    wrong = words[real & (words >= size)]
    if len(wrong):
        raise IndexError(f"Word {int(wrong[0])} is outside the vocabulary of {size}: ids run from 0 to {size - 1}.")
    return words.to(torch.int64)


class _Sums(torch.autograd.Function):
    """Both sums, and on the way forward already their gradient, some rows at a time.

    Scores for a vocabulary are the largest tensor of a small model. Taken whole, the float32 copies that logsumexp,
    softmax and their gradients need would cost several times its room and a trip through memory each. A few rows stay
    in the cache, and what is kept is one gradient in the precision of the scores.
    """

    @staticmethod
    def forward(
        context: Any, scores: Tensor, words: Tensor, real: Tensor, smoothing: float, consistency: float
    ) -> tuple[Tensor, Tensor]:
        """scores: # (passes, rows, vocabulary); words, real: # (rows,)"""
        passes, rows, size = scores.shape
        wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
        total, plain = torch.zeros(2, dtype=wide, device=scores.device)
        gradient = torch.empty_like(scores) if context.needs_input_grad[0] else None
        step = max(1, _CELLS.get(scores.device.type, _CELLS["cpu"]) // (passes * size))
        for first in range(0, rows, step):
            part = slice(first, first + step)
            hidden, came = ~real[part], words[part].expand(passes, -1)[..., None]
            log_p = scores[:, part].log_softmax(dim=-1, dtype=wide)  # (passes, some rows, vocabulary)
            each = -log_p.gather(-1, came)[..., 0]  # (passes, some rows)
            plain = plain + each.masked_fill(hidden, 0.0).sum() / passes
            if smoothing:
                each = each + smoothing * (-log_p.mean(dim=-1) - each)
            total = total + each.masked_fill(hidden, 0.0).sum() / passes
            p = log_p.exp() if consistency or gradient is not None else log_p
            apart, slope = _apart(log_p, p, consistency / 4) if consistency else (None, p.div_(passes))
            if apart is not None:
                total = total + consistency / 4 * apart.masked_fill(hidden, 0.0).sum()
            if gradient is not None:
                # The mean cross-entropy of the passes falls by p less the wanted distribution.
                slope.sub_(smoothing / size / passes)
                slope.scatter_add_(-1, came, torch.full_like(came, smoothing - 1, dtype=wide) / passes)
                gradient[:, part] = slope.masked_fill_(hidden[:, None], 0.0)
        context.save_for_backward(gradient)
        context.mark_non_differentiable(plain)
        return total, plain

    @staticmethod
    @once_differentiable
    def backward(context: Any, total: Tensor, plain: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = context.saved_tensors
        return gradient.mul_(total), None, None, None, None  # not needed again, and large


@lru_cache(maxsize=1)
def has_numba() -> bool:
    return find_spec("numba") is not None


@lru_cache(maxsize=1)
def has_triton() -> bool:
    return find_spec("triton") is not None


def _apart(log_p: Tensor, p: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """How far two passes differ, and the gradient of that times `weight`, with p / 2 added.

    log_p, p: # (2, rows, vocabulary)

    With d = log p − log q the two divergences sum to Σ (p − q) d. The gradient for the first pass' scores is
    p (d − Σ p d) + p − q; for the second both change their places and d its sign. These tensors are the largest there
    are, so each is touched as seldom as can be.
    """
    d = log_p[0] - log_p[1]
    first, second = (p * d).sum(dim=-1)  # (rows,) each
    slope = torch.empty_like(p)
    torch.mul(d, weight, out=slope[0]).add_((0.5 + weight - weight * first)[:, None])
    torch.mul(d, -weight, out=slope[1]).add_((0.5 + weight + weight * second)[:, None])
    slope.mul_(p).sub_(p.flip(0), alpha=weight)
    return first - second, slope


def _real(words: Tensor, lengths: Tensor | None) -> Tensor:
    """Which words count: those that are asked for and are no padding.  # (batch, tokens)"""
    asked = words >= 0
    if lengths is None:
        return asked
    return asked & (torch.arange(words.shape[1], device=words.device) < lengths[:, None])
