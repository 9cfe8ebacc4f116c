"""What comparisons with other implementations share: differences, and a case for the result file."""

import importlib
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from benchmarks.common import median_ratio, time_alternating
from torch import Tensor, nn

from regard.attention.context import AttentionHook

TOLERANCE = 1e-5
"""The largest difference of what two implementations compute in float32."""


def difference(mine: Tensor | None, other: Tensor) -> float:
    """The largest absolute difference."""
    assert mine is not None
    assert mine.shape == other.shape, (mine.shape, other.shape)
    return float((mine - other).detach().abs().max())


def relative_difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The largest difference in any pair of tensors, relative to the largest value in it."""
    return max(difference(mine, other) / float(other.abs().max()) for mine, other in pairs)


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def collect(weights: list[Tensor]) -> AttentionHook:
    """A hook that appends attention weights to a list."""
    return lambda module, each: weights.append(each)


def case(
    model: str,
    settings: Mapping[str, Any],
    differences: dict[str, float],
    ours: Callable[[], object],
    theirs: Callable[[], object],
    unit: str = "seconds for forward and backward pass, float32",
) -> dict[str, Any]:
    """The result of a comparison: whether both compute the same, and how long each takes."""
    our_seconds, their_seconds = time_alternating([ours, theirs], repeats=10)
    return {
        "model": model,
        "case": ", ".join(f"{name} {value}" for name, value in settings.items()),
        "differences": differences,
        "equal": max(differences.values()) <= TOLERANCE,
        "ours": statistics.median(our_seconds),
        "theirs": statistics.median(their_seconds),
        "ratio": median_ratio(our_seconds, their_seconds),
        "unit": unit,
    }


def fairseq_dictionary(size: int) -> Any:
    """A vocabulary of made-up words for fairseq."""
    words = importlib.import_module("fairseq.data").Dictionary()
    for number in range(size - len(words)):
        words.add_symbol(f"w{number}")
    return words


def some_batch(source_size: int, target_size: int, pad: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Padded sources, longest first, with their lengths; targets, and labels to predict after each of them."""
    rows, lengths = 8, torch.tensor([25, 25, 20, 17, 12, 6, 2, 1])
    tokens = torch.randint(4, source_size, (rows, 25))
    source = torch.where(torch.arange(25) < lengths[:, None], tokens, pad)
    target, labels = (torch.randint(4, target_size, (rows, 22)) for _ in range(2))
    return source, lengths, target, labels


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    """Move all parameters away from their small initial values, and biases from zero, so that all of them matter."""
    for parameter in model.parameters():
        std = 0.1 if parameter.dim() == 1 else 0.5 / parameter.shape[-1] ** 0.5
        parameter.add_(std * torch.randn_like(parameter))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
