"""Counting how much of their attention heads give to something, and what they would give to it without having learned.

The baseline of a measure is the better one of two strategies that need no learning, on the same queries: uniform
attention over all keys that a query may attend to, and attention to the token (or word) at the best fixed distance.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.look.analysis.head_roles.recording import LayerAttention

OFFSETS = (-3, -2, -1, 1, 2, 3)
"""The distances from a query to the key that baselines attend to."""
MIN_GAIN = 0.25
"""A head gets a tag if it closes at least this much of the gap between the baseline and a head that does only this."""
MIN_COUNT = 20
"""No tag is given for a measure of fewer queries."""
RULE = (
    f"A head gets a tag if it closes at least {MIN_GAIN:.0%} of the gap between the baseline and a head that does "
    f"nothing else, (value − baseline) / (1 − baseline) ≥ {MIN_GAIN}, over at least {MIN_COUNT} queries. For an error "
    f"rate, the error has to be at least {MIN_GAIN:.0%} below the baseline's."
)


class Baseline(NamedTuple):
    """What a strategy that needs no learning gives."""

    value: float
    strategy: str


class Score(NamedTuple):
    """A measure of one head."""

    value: float
    maximum: float | None
    """The share of queries whose largest weight lies there, where the value is a share of attention."""
    baseline: Baseline
    tag: bool


@dataclass
class ShareCounts:
    """The attention that the heads of a layer give to some keys, over all queries that have such keys."""

    heads: int
    has_offsets: bool = True
    """Whether attention at a fixed distance is a baseline; it is not where the measure itself is one."""

    def __post_init__(self) -> None:
        self.count, self.uniform = 0, 0.0
        self.shares, self.maxima = torch.zeros(2, self.heads, dtype=torch.float64)
        self.at_offsets = torch.zeros(len(OFFSETS), dtype=torch.float64)

    def add(self, layer: LayerAttention, wanted: Tensor) -> None:
        """Count an example.  wanted: # (queries, keys)"""
        wanted = wanted & layer.visible
        counted = wanted.any(dim=-1) & (layer.key_counts > 1)  # a query that sees a single key has no choice
        wanted, weights, maxima = wanted[counted], layer.weights[:, counted], layer.maxima[:, counted]
        self.count += int(counted.sum())
        self.shares += (weights * wanted).sum(dim=(1, 2), dtype=torch.float64)
        largest = weights == maxima[..., None]  # of several equal ones each counts in part
        hits = (largest & wanted).sum(dim=-1) / largest.sum(dim=-1).clamp(min=1)
        self.maxima += hits.sum(dim=-1, dtype=torch.float64)
        self.uniform += float((wanted.sum(dim=-1) / layer.key_counts[counted]).sum())
        self.at_offsets += offset_hits(wanted, counted.nonzero().flatten())

    def score(self, head: int) -> Score:
        value, maximum = float(self.shares[head]) / self.count, float(self.maxima[head]) / self.count
        baseline = best_share(self.uniform, self.at_offsets if self.has_offsets else None, self.count)
        return Score(value, maximum, baseline, is_clear_share(value, baseline.value, self.count))


def offset_hits(wanted: Tensor, positions: Tensor) -> Tensor:
    """For each distance, how many queries at these positions have a wanted key there.  wanted: # (queries, keys)"""
    hits = torch.zeros(len(OFFSETS), dtype=torch.float64)
    for index, offset in enumerate(OFFSETS):
        keys = positions + offset
        inside = (keys >= 0) & (keys < wanted.shape[1])
        hits[index] = wanted[inside.nonzero().flatten(), keys[inside]].sum()
    return hits


def best_share(uniform: float, at_offsets: Tensor | None, count: int, unit: str = "token") -> Baseline:
    """The better one of uniform attention and attention at the best distance, from sums over `count` queries."""
    strategies = [Baseline(uniform / count, "uniform attention")]
    if at_offsets is not None:
        best = int(at_offsets.argmax())
        strategies.append(Baseline(float(at_offsets[best]) / count, describe_offset(OFFSETS[best], unit)))
    return max(strategies)


def describe_offset(offset: int, unit: str) -> str:
    """The strategy of attention at a distance: "always 2 tokens back"."""
    return f"always {abs(offset)} {unit}{'s' if abs(offset) > 1 else ''} {'back' if offset < 0 else 'ahead'}"


def is_clear_share(value: float, baseline: float, count: int) -> bool:
    """Whether a share, of which more is better, beats its baseline clearly."""
    return count >= MIN_COUNT and value - baseline >= MIN_GAIN * (1 - baseline) > 0


def is_clear_error(value: float, baseline: float, count: int) -> bool:
    """Whether an error rate, of which less is better, beats its baseline clearly."""
    return count >= MIN_COUNT and baseline - value >= MIN_GAIN * baseline > 0
