"""The greatest scores of each row, and what turns them into log-probabilities, in one pass over the vocabulary."""

from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from regard.fast import triton_switch

_SMALLEST, _MOST, _MOST_ON_GPU = 64, 64, 32


def best_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and tokens, greatest first, and log Σ exp of all.  # (rows, count) twice, (rows, 1)

    logits: # (rows, vocabulary)
    """
    count = min(count, logits.shape[1])
    if has_triton(logits, count):
        from regard.decode import triton_kernels

        return triton_kernels.best_tokens(logits, count)
    if has_kernel(logits) and count <= _MOST:
        from regard.decode.kernels import best_tokens as kernel

        best, tokens = torch.empty(len(logits), count), torch.zeros(len(logits), count, dtype=torch.long)
        sums = torch.empty(len(logits), 1)
        kernel(logits.numpy(), best.numpy(), tokens.numpy(), sums[:, 0].numpy())
        return best, tokens, sums
    best, tokens = logits.topk(count, dim=1)
    return best, tokens, logits.logsumexp(dim=-1, keepdim=True)


def has_kernel(logits: Tensor) -> bool:
    """Whether the compiled way is there, and worth it."""
    return (
        logits.device.type == "cpu"
        and logits.dtype == torch.float32
        and logits.shape[1] >= _SMALLEST
        and logits.is_contiguous()
        and _compiled()
    )


def has_triton(logits: Tensor, count: int) -> bool:
    """Whether there are kernels for scores on this device and so many of the greatest of them."""
    fits = count <= _MOST_ON_GPU and logits.is_contiguous() and logits.dtype == torch.float32
    return fits and triton_switch.runs_on(logits.device) and _triton()


@lru_cache(maxsize=1)
def _compiled() -> bool:
    return find_spec("numba") is not None


@lru_cache(maxsize=1)
def _triton() -> bool:
    return find_spec("triton") is not None
