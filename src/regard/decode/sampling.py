"""Sampling: tokens drawn from the model's distribution.

Each token is drawn with one uniform number that depends on the slot's seed and the step alone. So the samples of a slot
depend neither on other slots nor on the order of computation, and the same seed gives the same text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.decode.greedy import Greedy
from regard.decode.strategy import LogitsProcessor
from regard.errors import UserError


@dataclass(frozen=True)
class SamplingParams:
    """Changes to the distribution before a token is drawn, applied in this order."""

    repetition_penalty: float = 1.0
    """Logits of tokens already generated are divided by it if positive, else multiplied (Keskar et al. 2019)."""
    temperature: float = 1.0
    """Logits are divided by it; 0 takes the most likely token."""
    top_k: int = 0
    """Only the k most likely tokens are kept; 0 keeps all."""
    top_p: float = 1.0
    """Only the smallest set of tokens with a total probability of at least `top_p` is kept (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Only tokens at least `min_p` times as likely as the most likely one are kept (Nguyen et al. 2024)."""


class Sampler(Greedy):
    """One sampled output per slot."""

    slot_tensors = (*Greedy.slot_tensors, "seeds")
    takes_argmax = False

    def __init__(
        self,
        max_lengths: Sequence[int],
        eos: int,
        params: SamplingParams | None = None,
        *,
        seeds: Sequence[int],
        processors: Sequence[LogitsProcessor] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(max_lengths, eos, processors=processors, alternatives=alternatives, device=device)
        if len(seeds) != self.slots:
            raise UserError(f"Found {len(seeds)} seeds for {self.slots} rows; give one for each row.")
        self.seeds = torch.tensor([_as_signed(seed) for seed in seeds], device=device)
        self.params = params or SamplingParams()

    def settings(self) -> tuple[Any, ...]:
        return (self.params,)

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        token = self._sample(self._process(logits))[:, None]
        return token, logits.gather(1, token), logits.logsumexp(dim=-1, keepdim=True)

    def _sample(self, logits: Tensor) -> Tensor:
        """logits: # (slots, vocab_size); returns (slots,)"""
        params = self.params
        if params.repetition_penalty != 1.0:
            logits = self._penalize_repetition(logits)
        if params.temperature == 0.0:
            return logits.argmax(dim=-1)
        number = uniform(self.seeds, self.lengths)[:, None]  # (slots, 1)
        order = None
        if 0 < params.top_k < logits.shape[1]:
            logits, order = logits.topk(params.top_k, dim=-1)
        p = (logits.double() / params.temperature).softmax(dim=-1)
        if params.top_p < 1.0 or params.min_p > 0.0:
            if order is None:
                p, order = p.sort(dim=-1, descending=True)
            p = self._truncate(p)
        index = _invert_cdf(p, number)
        return index if order is None else order.gather(1, index[:, None])[:, 0]

    def _truncate(self, p: Tensor) -> Tensor:
        """Zero for tokens outside top-p or below min-p.  p: # (slots, tokens), descending, summing to 1"""
        if self.params.top_p < 1.0:
            p = p * (p.cumsum(dim=-1) - p < self.params.top_p)
        return p * (p >= self.params.min_p * p[:, :1])

    def _penalize_repetition(self, logits: Tensor) -> Tensor:
        penalty = self.params.repetition_penalty
        written = torch.arange(self.capacity, device=logits.device) < self.lengths[:, None]  # (slots, capacity)
        counts = torch.zeros_like(logits).scatter_add(1, self.tokens.clamp(min=0), written.to(logits.dtype))
        penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.where(counts > 0, penalized, logits)


def uniform(seeds: Tensor, steps: Tensor) -> Tensor:
    """A uniform number in [0, 1) for each seed and step, the same on every device.

    SplitMix64 (Steele, Lea & Flood 2014): the state after `steps` additions, mixed.  # (slots,), float64
    """
    x = _mix(seeds) + (steps + 1) * _as_signed(0x9E3779B97F4A7C15)
    return _shift_right(_mix(x), 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * _as_signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _as_signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: zeros come in from the left, as for unsigned numbers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _as_signed(number: int) -> int:
    """The same 64 bits as a signed number."""
    return (number + 2**63) % 2**64 - 2**63


def _invert_cdf(p: Tensor, number: Tensor) -> Tensor:
    """The token at which the cumulative probability exceeds a number in [0, 1).  p: # (slots, tokens)"""
    cdf = p.cumsum(dim=-1)
    last = p.shape[1] - 1 - (p.flip(1) > 0).to(torch.uint8).argmax(dim=-1)  # rounding must not go past it
    return torch.minimum((cdf <= number * cdf[:, -1:]).sum(dim=-1), last)
