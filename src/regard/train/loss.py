"""Training losses: label-smoothed cross-entropy, and R-Drop for two forward passes.

A loss is a sum and a count, never a mean: micro-batches, gradient accumulation and several processes all have different
numbers of targets, and only sums can be combined without weighting some targets more than others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.config import Config
from regard.fused.layers import DeferredLogits
from regard.kernels import dispatch
from regard.model.mixture_of_experts import MixtureOfExperts, record_routing, total_aux_loss

_CHUNK_LOGITS = {"cpu": 1 << 19, "cuda": 1 << 23}
"""Logits per chunk: about as many as fit into the cache in float32."""
_MIN_KERNEL_LOGITS = 1 << 16
"""Below this many logits, starting a compiled kernel does not pay."""


class LossConfig(Config):
    """The training loss."""

    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """The probability mass that is spread over the whole vocabulary (Vaswani et al. 2017, §5.4)."""
    r_drop: float = Field(default=0.0, ge=0, le=1e3)
    """R-Drop's α: how strongly two forward passes with different dropout must agree (Liang et al. 2021, eq. 4).
    0 means a single pass."""

    @property
    def passes(self) -> int:
        """How often each row goes through the model in a training step: twice for R-Drop, with different dropout.

        The second pass is concatenated to the first along the batch, so that both cost one call of the model.
        """
        return 2 if self.r_drop else 1


@dataclass(frozen=True)
class Loss:
    """Sums over the targets: `total` is trained on, `nll` is the same without label smoothing (for perplexity)."""

    total: Tensor
    nll: Tensor
    count: Tensor

    @property
    def mean(self) -> Tensor:
        return self.total / self.count.clamp(min=1)

    def with_auxiliary(self, per_target: Tensor | None) -> "Loss":
        """The same with an auxiliary loss added to `total`, given per target; `nll` stays as it is."""
        return self if per_target is None else Loss(self.total + per_target * self.count, self.nll, self.count)

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(self.total + other.total, self.nll + other.nll, self.count + other.count)


def add_aux_loss(model: nn.Module, compute: Callable[[], Loss]) -> Loss:
    """The loss that `compute` returns, plus the auxiliary loss of the model's mixture-of-experts layers, if any."""
    if not any(isinstance(module, MixtureOfExperts) for module in model.modules()):
        return compute()
    with record_routing() as records:
        loss = compute()
    return loss.with_auxiliary(total_aux_loss(records))


def training_loss(logits: Tensor | DeferredLogits, targets: Tensor, lengths: Tensor | None, config: LossConfig) -> Loss:
    """The loss of a training step. The logits are not needed afterwards, so their gradient may overwrite them.

    logits: # (passes · batch, tokens, vocabulary); targets: # (batch, tokens); lengths: # (batch,)
    """
    if config.r_drop:
        return r_drop_loss(logits, targets, lengths, config.label_smoothing, config.r_drop, inplace=True)
    return cross_entropy(logits, targets, lengths, config.label_smoothing, inplace=True)


def cross_entropy(
    logits: Tensor | DeferredLogits,
    targets: Tensor,
    lengths: Tensor | None = None,
    label_smoothing: float = 0.0,
    *,
    inplace: bool = False,
) -> Loss:
    """Cross-entropy of each row's first `lengths` targets (all of them, if not given), in float32.

    logits: # (batch, tokens, vocabulary); targets: # (batch, tokens); lengths: # (batch,)

    Negative targets are ignored. With label smoothing ε the target distribution is 1 − ε on the target plus ε spread
    over the whole vocabulary, the target included (Szegedy et al. 2016; Vaswani et al. 2017, §5.4). With `inplace` the
    gradient may overwrite the logits. `DeferredLogits` are computed here, without padding and a chunk at a time.
    """
    return _loss(logits, targets, lengths, label_smoothing, 0.0, passes=1, inplace=inplace)


def r_drop_loss(
    logits: Tensor | DeferredLogits,
    targets: Tensor,
    lengths: Tensor | None,
    label_smoothing: float,
    alpha: float,
    *,
    inplace: bool = False,
) -> Loss:
    """The cross-entropy of two forward passes over the same rows plus their divergence (R-Drop, Liang et al. 2021).

    logits: # (2 · batch, tokens, vocabulary), the second pass after the first; targets: # (batch, tokens)

    Half of the paper's ℒ, so that it compares with the loss of one pass: the mean of both cross-entropies plus α/4
    times the two Kullback–Leibler divergences, whose sum is Σ (p − q)(log p − log q).
    """
    return _loss(logits, targets, lengths, label_smoothing, alpha, passes=2, inplace=inplace)


def _loss(
    logits: Tensor | DeferredLogits,
    targets: Tensor,
    lengths: Tensor | None,
    label_smoothing: float,
    alpha: float,
    *,
    passes: int,
    inplace: bool,
) -> Loss:
    counted, targets = _counted(targets, lengths).flatten(), targets.flatten().clamp(min=0)
    if isinstance(logits, DeferredLogits):
        if passes == 1 and not alpha:
            return _linear_cross_entropy(logits, targets, counted, label_smoothing)
        logits = logits.logits()
    rows = logits.reshape(passes, counted.numel(), logits.shape[-1])
    if rows.is_cuda and rows.dtype != torch.float64 and dispatch.has_triton():
        from regard.kernels.cuda.cross_entropy import CrossEntropy as CudaCrossEntropy

        inputs = (rows, targets, counted, label_smoothing, alpha, inplace)
        total, nll = CudaCrossEntropy.apply(*inputs)  # type: ignore[no-untyped-call]
    elif passes == 1 and rows.numel() > _MIN_KERNEL_LOGITS and dispatch.runs_numba(rows.device, rows.dtype):
        from regard.kernels.cpu.cross_entropy import CrossEntropy as CpuCrossEntropy

        ids = _check_ids(targets, counted, rows.shape[2]).masked_fill(~counted, -1)
        total, nll = CpuCrossEntropy.apply(rows[0], ids, label_smoothing, inplace)  # type: ignore[no-untyped-call]
    else:
        total, nll = _CrossEntropy.apply(rows, targets, counted, label_smoothing, alpha)  # type: ignore[no-untyped-call]
    return Loss(total, nll, counted.sum())


def _linear_cross_entropy(deferred: DeferredLogits, targets: Tensor, counted: Tensor, label_smoothing: float) -> Loss:
    """The output projection and the cross-entropy in one.  targets, counted: # (rows,)"""
    x = deferred.x.flatten(0, 1)
    if dispatch.runs_triton(x.device):
        from regard.kernels.cuda.cross_entropy import LinearCrossEntropy as CudaLinearCrossEntropy

        inputs = (x, deferred.weight, deferred.bias, targets, counted, label_smoothing)
        total, nll = CudaLinearCrossEntropy.apply(*inputs)  # type: ignore[no-untyped-call]
        return Loss(total, nll, counted.sum())
    from regard.kernels.cpu.cross_entropy import LinearCrossEntropy as CpuLinearCrossEntropy
    from regard.kernels.cpu.linear import pad_to_multiple

    targets = _check_ids(targets, counted, len(deferred.weight))
    if not bool(counted.all()):
        kept = pad_to_multiple(counted)
        x, targets = x.index_select(0, kept), targets.masked_fill(~counted, -1)[kept]
    needs_grad = torch.is_grad_enabled()
    parts = (x, deferred.weight, deferred.bias, targets, label_smoothing, needs_grad)
    total, nll = CpuLinearCrossEntropy.apply(*parts)  # type: ignore[no-untyped-call]
    return Loss(total, nll, counted.sum())


def _check_ids(targets: Tensor, counted: Tensor, vocab_size: int) -> Tensor:
    """The targets, once those that count are known to be in the vocabulary: compiled kernels do not check."""
    wrong = targets[counted & (targets >= vocab_size)]
    if len(wrong):
        raise IndexError(
            f"Target {int(wrong[0])} is outside the vocabulary of {vocab_size}: ids run from 0 to {vocab_size - 1}."
        )
    return targets.to(torch.int64)


class _CrossEntropy(torch.autograd.Function):
    """The loss sums and, already during the forward pass, their gradient, a chunk of rows at a time.

    The logits are the largest tensor of a small model. For all of them at once, the float32 copies that logsumexp,
    softmax and their gradients need would take several times the logits' memory, and one trip through it each. A chunk
    stays in the cache, and all that is kept is one gradient in the logits' dtype.
    """

    @staticmethod
    def forward(
        context: Any, logits: Tensor, targets: Tensor, counted: Tensor, label_smoothing: float, alpha: float
    ) -> tuple[Tensor, Tensor]:
        """logits: # (passes, rows, vocabulary); targets, counted: # (rows,)"""
        passes, rows, vocab_size = logits.shape
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        total, nll = torch.zeros(2, dtype=dtype, device=logits.device)
        logits_grad = torch.empty_like(logits) if context.needs_input_grad[0] else None
        chunk = max(1, _CHUNK_LOGITS.get(logits.device.type, _CHUNK_LOGITS["cpu"]) // (passes * vocab_size))
        for first in range(0, rows, chunk):
            part = slice(first, first + chunk)
            ignored, ids = ~counted[part], targets[part].expand(passes, -1)[..., None]
            log_p = logits[:, part].log_softmax(dim=-1, dtype=dtype)  # (passes, chunk, vocabulary)
            losses = -log_p.gather(-1, ids)[..., 0]  # (passes, chunk)
            nll = nll + losses.masked_fill(ignored, 0.0).sum() / passes
            if label_smoothing:
                losses = losses + label_smoothing * (-log_p.mean(dim=-1) - losses)
            total = total + losses.masked_fill(ignored, 0.0).sum() / passes
            p = log_p.exp() if alpha or logits_grad is not None else log_p
            divergence, grad = _divergence(log_p, p, alpha / 4) if alpha else (None, p.div_(passes))
            if divergence is not None:
                total = total + alpha / 4 * divergence.masked_fill(ignored, 0.0).sum()
            if logits_grad is not None:
                # The gradient of the mean cross-entropy is p minus the target distribution, over `passes`.
                grad.sub_(label_smoothing / vocab_size / passes)
                grad.scatter_add_(-1, ids, torch.full_like(ids, label_smoothing - 1, dtype=dtype) / passes)
                logits_grad[:, part] = grad.masked_fill_(ignored[:, None], 0.0)
        context.save_for_backward(logits_grad)
        context.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @once_differentiable
    def backward(context: Any, total_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        (logits_grad,) = context.saved_tensors
        return logits_grad.mul_(total_grad), None, None, None, None  # in place: large, and not needed again


def _divergence(log_p: Tensor, p: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """The divergence of two passes, and the gradient of `weight` times it, with p / 2 added.

    log_p, p: # (2, rows, vocabulary)

    With d = log p − log q the two Kullback–Leibler divergences sum to Σ (p − q) d. The gradient for the first pass'
    logits is p (d − Σ p d) + p − q; for the second, p and q swap and d changes sign. These are the largest tensors
    there are, so each is touched as rarely as possible.
    """
    d = log_p[0] - log_p[1]
    first, second = (p * d).sum(dim=-1)  # (rows,) each
    grad = torch.empty_like(p)
    torch.mul(d, weight, out=grad[0]).add_((0.5 + weight - weight * first)[:, None])
    torch.mul(d, -weight, out=grad[1]).add_((0.5 + weight + weight * second)[:, None])
    grad.mul_(p).sub_(p.flip(0), alpha=weight)
    return first - second, grad


def _counted(targets: Tensor, lengths: Tensor | None) -> Tensor:
    """Which targets count: those that are not negative and not padding.  # (batch, tokens)"""
    labeled = targets >= 0
    if lengths is None:
        return labeled
    return labeled & (torch.arange(targets.shape[1], device=targets.device) < lengths[:, None])
