"""The interfaces of search strategies and logits processors, their per-slot tensors, and helpers that strategies share.

A strategy decodes many outputs side by side, one in each slot. Its tensors have the slot as their first dimension, so
that finished slots can be dropped, and others filled with new requests, while the rest continues. Token buffers start
with `INITIAL_CAPACITY` positions and double when they are full, because the maximum length of an output may be far
longer than the output.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from regard.config import Config
from regard.decode.observer import Candidates
from regard.kernels import dispatch

INITIAL_CAPACITY = 64
_MIN_VOCAB_SIZE = 64
"""The smallest vocabulary for which the numba kernel pays off."""
_MAX_K_CPU, _MAX_K_CUDA = 64, 32
MAX_PERIOD = 8
"""The longest n-gram whose repetition is limited."""


@dataclass(frozen=True)
class Hypothesis:
    """An output: its tokens without BOS and EOS, their log-probability, and the score it was ranked by."""

    tokens: tuple[int, ...]
    logprob: float
    score: float
    ended: bool
    """Whether it ended with EOS; if not, it was cut at its maximum length."""
    token_logprobs: tuple[float, ...] = ()
    """The log-probability of each token, and of EOS if it ended."""
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    """On request, the most likely tokens of each step with their log-probabilities."""


class OutputLimits(NamedTuple):
    """Limits on every output of a search, which the compiled steps apply as well (`logits_processors.apply_limits`)."""

    min_length: int = 0
    """No output ends before it has this many tokens."""
    max_repeats: int = 0
    """No n-gram of at most `MAX_PERIOD` tokens occurs more often than this in a row; 0 is no limit."""


class Choice(NamedTuple):
    """The outcome of a step: the row that each row continues (None: itself) and its next token.  # (rows,)"""

    beam_indices: Tensor | None
    tokens: Tensor
    candidates: Candidates | None
    """For an observer; may be None without one."""


class SlotTensors:
    """An object with tensors whose first dimension is the slot: attributes, or NamedTuples of tensors."""

    slot_tensors: tuple[str, ...] = ()
    """The names of these attributes."""

    def select_slots(self, slots: Tensor) -> None:
        """Keep these slots only, in this order.  slots: # (slots to keep,)"""
        for name in self.slot_tensors:
            value = getattr(self, name)
            selected = value[slots] if isinstance(value, Tensor) else value._make(each[slots] for each in value)
            setattr(self, name, selected)

    def scatter_slots(self, slots: Tensor, other: Self) -> None:
        """Replace these slots by those of another object with the same settings; slots past the last are added.

        If their capacities differ, the smaller tensors are padded with zeros.
        """
        for name in self.slot_tensors:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Tensor):
                setattr(self, name, _scatter(mine, slots, theirs))
            else:
                pairs = zip(mine, theirs, strict=True)
                setattr(self, name, mine._make(_scatter(old, slots, new) for old, new in pairs))

    def tensors(self) -> list[Tensor]:
        """All of these tensors, one after another."""
        values = (getattr(self, name) for name in self.slot_tensors)
        return [tensor for value in values for tensor in ([value] if isinstance(value, Tensor) else value)]

    def set_tensors(self, tensors: Iterator[Tensor]) -> None:
        """Replace these tensors, in the order of `tensors()`."""
        for name in self.slot_tensors:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                setattr(self, name, next(tensors))
            else:
                setattr(self, name, value._make(next(tensors) for _ in value))


class GeneratedTokens(NamedTuple):
    """The tokens that every row has generated so far."""

    tokens: Tensor  # (rows, capacity): the first `lengths` of each row are valid
    lengths: Tensor  # (rows,)


class LogitsProcessor(SlotTensors, ABC):
    """Excludes tokens by setting their logits to -inf.

    The log-probabilities of the remaining tokens stay the model's own: they are normalized before processing.
    """

    key: Hashable
    """Processors with the same key and the same tensor shapes compute the same function."""

    @abstractmethod
    def __call__(self, logits: Tensor, generated: GeneratedTokens) -> Tensor:
        """The logits with -inf for every token that may not come next.  logits: # (rows, vocab_size)"""


def apply_processors(processors: Sequence[LogitsProcessor], logits: Tensor, generated: GeneratedTokens) -> Tensor:
    for process in processors:
        logits = process(logits, generated)
    return logits


class SearchStrategy(ABC):
    """Turns logits into the next tokens of some slots, each with `beam_size` rows. It is independent of the model."""

    beam_size: int = 1
    slots: int
    observed: bool = False
    """Whether an observer needs the candidates of each step."""
    limits: OutputLimits = OutputLimits()

    @abstractmethod
    def choose(self, logits: Tensor) -> Choice:
        """Choose the next tokens in every slot.  logits: # (slots · beam_size, vocab_size)"""

    def live_rows(self) -> Tensor | None:
        """The rows whose logits the next step depends on, in ascending order; None if those are all.  # (some,)"""
        return None

    def choose_live(self, logits: Tensor, rows: Tensor) -> Choice:
        """The same as `choose`, from the logits of the live rows.  logits: # (len(rows), vocab_size)"""
        every = logits.new_zeros(self.slots * self.beam_size, logits.shape[1])
        return self.choose(every.index_copy_(0, rows, logits))

    @abstractmethod
    def finished(self) -> Tensor:
        """Which slots can no longer find a better output.  # (slots,)"""

    @abstractmethod
    def results(self, slot: int) -> list[Hypothesis]:
        """The hypotheses found for a slot, best first."""

    def results_of(self, slots: Sequence[int]) -> list[list[Hypothesis]]:
        """The hypotheses found for some slots."""
        return [self.results(slot) for slot in slots]

    @abstractmethod
    def select_slots(self, slots: Tensor) -> None:
        """Continue with these slots only.  slots: # (slots to keep,)"""

    @abstractmethod
    def scatter_slots(self, slots: Tensor, other: Self) -> None:
        """Replace these slots by those of another strategy with the same settings; slots past the last are added."""

    @abstractmethod
    def clear_slots(self, slots: Tensor) -> None:
        """Empty these slots until they are replaced.  slots: # (slots to clear,)"""

    @abstractmethod
    def best_tokens(self, slot: int) -> tuple[int, ...]:
        """The tokens of a slot's best unfinished output so far."""

    @abstractmethod
    def stop(self, slot: int) -> None:
        """Finish a slot with the tokens it has."""

    @property
    @abstractmethod
    def max_steps(self) -> int:
        """The number of steps after which every slot is finished."""


class SlottedStrategy(SlotTensors, SearchStrategy):
    """A strategy that keeps everything in per-slot tensors and never waits for the device.

    So its steps can be captured in a CUDA graph (`cuda_graphs`), unless `graph_key` is None.
    """

    token_buffers: tuple[str, ...]
    """Those of `slot_tensors` that have one entry per token, along `token_dim`."""
    token_dim: int
    max_lengths: Tensor  # (slots,)
    lengths: Tensor  # (slots,)
    eos: int
    alternatives: int
    """The number of alternatives to record for each token."""
    processors: Sequence[LogitsProcessor] = ()
    steps_taken: int = 0
    """An upper bound of `lengths`, known without waiting for the device."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """The number of tokens that the buffers hold."""

    @property
    def max_steps(self) -> int:
        return int(self.max_lengths.max())

    @property
    def is_full(self) -> bool:
        """Whether one more token needs more capacity."""
        return self.steps_taken == self.capacity

    def _count_step(self) -> None:
        """Make room for one more token."""
        if self.is_full:
            self.grow()
        self.steps_taken += 1

    def grow(self) -> None:
        """Double the capacity."""
        for name in self.token_buffers:
            setattr(self, name, _double(getattr(self, name), self.token_dim))

    def select_slots(self, slots: Tensor) -> None:
        self.slots = slots.shape[0]
        super().select_slots(slots)
        for processor in self.processors:
            processor.select_slots(slots)

    def scatter_slots(self, slots: Tensor, other: Self) -> None:
        super().scatter_slots(slots, other)
        for mine, theirs in zip(self.processors, other.processors, strict=True):
            mine.scatter_slots(slots, theirs)
        self.slots, self.steps_taken = self.max_lengths.shape[0], int(self.lengths.max())

    def clear_slots(self, slots: Tensor) -> None:
        self.lengths[slots] = 0

    def tensors(self) -> list[Tensor]:
        """Every tensor that a step reads or changes, those of the processors included."""
        return [*super().tensors(), *(tensor for processor in self.processors for tensor in processor.tensors())]

    def set_tensors(self, tensors: Iterator[Tensor]) -> None:
        super().set_tensors(tensors)
        for processor in self.processors:
            processor.set_tensors(tensors)

    def copy(self) -> Self:
        """A strategy with the same tensors, whose tensors can be replaced without changing this one."""
        other = copy.copy(self)
        other.processors = [copy.copy(processor) for processor in self.processors]
        return other

    def all_results(self) -> list[list[Hypothesis]]:
        """The hypotheses found for every slot, best first. Waits for the device once."""
        on_cpu = self.copy()
        on_cpu.set_tensors(tensor.cpu() for tensor in self.tensors())
        return [on_cpu.results(slot) for slot in range(self.slots)]

    def graph_key(self) -> Hashable | None:
        """Strategies with the same key and tensor shapes take the same steps; None if they cannot be captured."""
        keys = (processor.key for processor in self.processors)
        return type(self), self.eos, self.alternatives, self.observed, self.limits, *self.settings(), *keys

    def settings(self) -> tuple[Any, ...]:
        """Everything besides tensors that a step depends on."""
        return ()


class LengthPenalty(Config):
    """The length penalty: the divisor of a hypothesis's log-probability, so that outputs are not ranked last just for
    being long.

    `gnmt`: ((5 + length) / 6)^alpha (Wu et al. 2016, eq. 14; the Transformer paper uses 0.6). `power`: length^alpha; an
    alpha of 1 gives the mean log-probability per token. `none`: 1.
    """

    kind: Literal["gnmt", "power", "none"] = "gnmt"
    """The formula of the penalty."""
    alpha: float = Field(default=0.6, ge=0, le=10)
    """The exponent: above 0, longer outputs are favored; 0 compares log-probabilities as they are."""

    def at(self, length: int) -> float:
        """The divisor for `length` tokens, EOS included. It never decreases with the length."""
        match self.kind:
            case "gnmt":
                return float(((5 + length) / 6) ** self.alpha)
            case "power":
                return float(length**self.alpha)
            case "none":
                return 1.0


def topk_logsumexp(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest logits, their tokens, and the log-sum-exp of each row.

    logits: # (rows, vocab_size); returns (rows, k) twice, largest first, and (rows, 1)
    """
    k = min(k, logits.shape[1])
    if uses_triton(logits, k):
        from regard.kernels.cuda import topk as cuda_kernels

        return cuda_kernels.topk_logsumexp(logits, k)
    if uses_numba(logits) and k <= _MAX_K_CPU:
        from regard.kernels.cpu import topk as cpu_kernels

        largest, tokens = torch.empty(len(logits), k), torch.zeros(len(logits), k, dtype=torch.long)
        normalizer = torch.empty(len(logits), 1)
        cpu_kernels.topk_logsumexp(logits.numpy(), largest.numpy(), tokens.numpy(), normalizer[:, 0].numpy())
        return largest, tokens, normalizer
    largest, tokens = logits.topk(k, dim=1)
    return largest, tokens, logits.logsumexp(dim=-1, keepdim=True)


def uses_numba(logits: Tensor) -> bool:
    """Whether the numba kernels of `kernels.cpu.beam_step` take these logits."""
    fits = logits.shape[1] >= _MIN_VOCAB_SIZE and logits.is_contiguous()
    return fits and dispatch.runs_numba(logits.device, logits.dtype)


def uses_triton(logits: Tensor, k: int) -> bool:
    """Whether the Triton kernels of `kernels.cuda.beam_step` take these logits and this k."""
    fits = k <= _MAX_K_CUDA and logits.is_contiguous() and logits.dtype == torch.float32
    return fits and dispatch.runs_triton(logits.device)


def as_input(tokens: Tensor, eos: int) -> Tensor:
    """Next tokens as a model can read them, in place: those of ended outputs are EOS, which is −1 if there is none."""
    return tokens.clamp_(min=0) if eos < 0 else tokens


def upcast(logits: Tensor) -> Tensor:
    """Logits in float32, or in float64 if they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _double(value: Any, dim: int) -> Any:
    if not isinstance(value, Tensor):
        return value._make(_double(each, dim) if each.dim() > dim else each for each in value)
    return _pad_to(value, [size * 2 if number == dim else size for number, size in enumerate(value.shape)])


def _scatter(mine: Tensor, slots: Tensor, theirs: Tensor) -> Tensor:
    shape = [max(sizes) for sizes in zip(mine.shape[1:], theirs.shape[1:], strict=True)]
    count = max(mine.shape[0], int(slots.max()) + 1)
    merged = _pad_to(mine, (count, *shape)).clone()
    merged[slots] = _pad_to(theirs, (theirs.shape[0], *shape))
    return merged


def _pad_to(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Zero-padded at the end of every dimension."""
    missing = [target - size for size, target in zip(tensor.shape, shape, strict=True)]
    return pad(tensor, [amount for each in reversed(missing) for amount in (0, each)]) if any(missing) else tensor
