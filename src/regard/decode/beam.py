"""Beam search: the best continuations of every slot, step by step.

Everything stays on the device and has a fixed shape: the alive hypotheses of each slot, best first, and the best
completed ones. A slot starts with one alive hypothesis; the other entries have a log-probability of -inf.

A slot is finished only when no alive hypothesis can become one of the `nbest` that are asked for, not at the first
EOS. Log-probabilities are at most 0 and the length penalty never decreases, so the best score that an alive hypothesis
can reach is its current log-probability divided by the largest penalty it can still get.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from regard.decode.logits_processors import apply_limits
from regard.decode.observer import Candidates
from regard.decode.search import DecoderModel, MaxLength, State, row_max_lengths, search
from regard.decode.strategy import (
    INITIAL_CAPACITY,
    MAX_PERIOD,
    Choice,
    GeneratedTokens,
    Hypothesis,
    LengthPenalty,
    LogitsProcessor,
    SlottedStrategy,
    apply_processors,
    as_input,
    topk_logsumexp,
    upcast,
    uses_numba,
    uses_triton,
)
from regard.errors import UserError

_NEG_INF = float("-inf")


class BeamHypotheses(NamedTuple):
    """Some hypotheses of every slot, as tensors."""

    logprobs: Tensor  # (slots, n): summed over the tokens
    tokens: Tensor  # (slots, n, capacity)
    token_logprobs: Tensor  # (slots, n, capacity)
    alternative_tokens: Tensor  # (slots, n, capacity, alternatives)
    alternative_logprobs: Tensor  # (slots, n, capacity, alternatives)

    def select(self, indices: Tensor) -> "BeamHypotheses":
        """indices: # (slots, m)"""
        return BeamHypotheses(*(gather_beams(tensor, indices) for tensor in self))


class BeamCandidates(NamedTuple):
    """The best continuations of every slot, best first."""

    hypotheses: BeamHypotheses
    beam_indices: Tensor  # (slots, candidates)
    tokens: Tensor  # (slots, candidates)
    scores: Tensor  # (slots, candidates): the values they are ranked by


class BeamSearch(SlottedStrategy):
    """The `beam_size` best outputs of every slot. One that reaches its maximum length is cut there and ranked too."""

    nbest: int | None = None
    """The number of best hypotheses to return; all if None."""
    slot_tensors = (
        "max_lengths",
        "max_penalties",
        "lengths",
        "completed_scores",
        "completed_lengths",
        "completed_ended",
        "done",
        "next_tokens",
        "alive",
        "completed",
    )
    token_buffers = ("alive", "completed")
    token_dim = 2
    _ran_fused = False
    """Whether the last step was a fused kernel, which also sets `done`."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        eos: int,
        beam_size: int,
        *,
        length_penalty: LengthPenalty | None = None,
        processors: Sequence[LogitsProcessor] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if beam_size < 1:
            raise UserError(f"The beam size must be at least 1; found {beam_size}.")
        self.length_penalty = length_penalty or LengthPenalty()
        self.slots, self.beam_size, self.eos = len(max_lengths), beam_size, eos
        self.processors, self.alternatives = processors, alternatives
        self.max_lengths = torch.tensor(list(max_lengths), device=device)
        self.lengths = torch.zeros_like(self.max_lengths)  # of all alive hypotheses of a slot
        largest = [self.length_penalty.at(length) for length in max_lengths]
        self.max_penalties = torch.tensor(largest, dtype=torch.float64, device=device)
        self.penalties = self._penalty_table(INITIAL_CAPACITY)
        tokens = torch.zeros(self.slots, beam_size, INITIAL_CAPACITY, dtype=torch.long, device=device)
        empty = torch.full((self.slots, beam_size), _NEG_INF, dtype=torch.float64, device=device)
        others = tokens[..., None].expand(-1, -1, -1, alternatives)
        self.alive = BeamHypotheses(empty.clone(), tokens, tokens.double(), others, others.double())
        self.alive.logprobs[:, 0] = 0.0
        self.completed = BeamHypotheses(*(tensor.clone() for tensor in self.alive._replace(logprobs=empty)))
        self.completed_scores = empty.clone()
        self.completed_lengths = torch.zeros_like(empty, dtype=torch.long)  # EOS included
        self.completed_ended = torch.zeros_like(empty, dtype=torch.bool)
        self.done = torch.zeros_like(self.max_lengths, dtype=torch.bool)
        self.next_tokens = torch.zeros_like(empty, dtype=torch.long)
        """Written by the CUDA kernel, always at the same address."""

    @property
    def capacity(self) -> int:
        return self.alive.tokens.shape[2]

    def choose(self, logits: Tensor) -> Choice:
        """Of the best 2 · beam_size candidates at most `beam_size` end, so that `beam_size` others stay alive."""
        self._count_step()
        if self._is_plain and uses_triton(logits, 2 * self.beam_size):
            return self._choose_cuda(logits)
        if self._is_plain and uses_numba(logits):
            return self._choose_cpu(logits, torch.arange(len(logits)))
        hypotheses, beam_indices, tokens, scores = self.candidates(upcast(logits))
        candidates = Candidates(beam_indices, tokens, hypotheses.logprobs)
        ended = tokens == self.eos
        if _any(ended):
            logprobs = hypotheses.logprobs.masked_fill(~ended, _NEG_INF)
            self._complete(hypotheses._replace(logprobs=logprobs), self.lengths + 1, ended=True)
        survivors = self.survivors(scores.masked_fill(ended, _NEG_INF))  # (slots, beam_size)
        self.alive = hypotheses.select(survivors)
        self.alive.logprobs.masked_fill_(gather_beams(ended, survivors), _NEG_INF)
        self.lengths = self.lengths + 1
        self._cut()
        first_rows = torch.arange(self.slots, device=tokens.device)[:, None] * self.beam_size
        rows = first_rows + gather_beams(beam_indices, survivors)
        return Choice(rows.flatten(), gather_beams(tokens, survivors).flatten(), candidates)

    def live_rows(self) -> Tensor | None:
        """Those with a hypothesis: one in the first step, and fewer and fewer while the last ones are overtaken."""
        if type(self) is not BeamSearch or self.observed:
            return None
        live = self.alive.logprobs.flatten() != _NEG_INF
        return None if bool(live.all()) else live.nonzero()[:, 0]

    def choose_live(self, logits: Tensor, rows: Tensor) -> Choice:
        if not self._is_plain or not uses_numba(logits):
            return super().choose_live(logits, rows)
        self._count_step()
        return self._choose_cpu(logits, rows)

    def clear_slots(self, slots: Tensor) -> None:
        super().clear_slots(slots)
        if slots.device.type == "cpu":  # a GPU computes all rows anyway
            self.alive.logprobs[slots] = _NEG_INF

    def candidates(self, logits: Tensor) -> BeamCandidates:
        """The best 2 · beam_size continuations of each slot.  logits: # (slots · beam_size, vocab_size)"""
        best, tokens, normalizer = self.best_logits(logits, 2 * self.beam_size)  # (slots · beam_size, k)
        logprobs = (best - normalizer).double()
        scores = (self.alive.logprobs.view(-1, 1) + logprobs).view(self.slots, -1)  # (slots, beam_size · k)
        scores, chosen = scores.topk(min(2 * self.beam_size, scores.shape[1]), dim=1)
        beam_indices, tokens = chosen // best.shape[1], tokens.view(self.slots, -1).gather(1, chosen)
        logprobs = self.model_logprobs(logprobs.view(self.slots, -1).gather(1, chosen), tokens)
        all_logprobs = logits - normalizer if self.alternatives else logits
        hypotheses = self.extend(beam_indices, tokens, logprobs, all_logprobs)
        return BeamCandidates(hypotheses, beam_indices, tokens, scores)

    def best_logits(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The k best logits of each row, best first, their tokens, and the log-sum-exp of all."""
        if not self.processors and not any(self.limits):
            return topk_logsumexp(logits, k)
        best, tokens = self.process(logits).topk(min(k, logits.shape[1]), dim=1)
        return best, tokens, logits.logsumexp(dim=-1, keepdim=True)

    def model_logprobs(self, logprobs: Tensor, tokens: Tensor) -> Tensor:
        """The model's own log-probabilities of the candidates, if `best_logits` changed them.  # (slots, candidates)"""
        return logprobs

    def process(self, logits: Tensor) -> Tensor:
        lengths = self.lengths.repeat_interleave(self.beam_size)
        generated = GeneratedTokens(self.alive.tokens.flatten(0, 1), lengths)
        return apply_limits(self.limits, self.eos, apply_processors(self.processors, logits, generated), generated)

    def extend(self, beam_indices: Tensor, tokens: Tensor, logprobs: Tensor, all_logprobs: Tensor) -> BeamHypotheses:
        """Alive hypotheses with one more token.

        The first three are # (slots, candidates); all_logprobs: # (slots · beam_size, vocab_size)
        """
        extended = self.alive.select(beam_indices)
        position = self.lengths.clamp(max=self.capacity - 1)[:, None, None].expand(*beam_indices.shape, 1)
        extended = extended._replace(
            logprobs=extended.logprobs + logprobs,
            tokens=extended.tokens.scatter(2, position, tokens[:, :, None]),
            token_logprobs=extended.token_logprobs.scatter(2, position, logprobs[:, :, None]),
        )
        if not self.alternatives:
            return extended
        self.alternatives = min(self.alternatives, all_logprobs.shape[1])
        best = all_logprobs.topk(self.alternatives, dim=1)  # (slots · beam_size, alternatives)
        by_beam = (each.view(self.slots, self.beam_size, -1) for each in best)
        top, top_tokens = (gather_beams(each, beam_indices)[:, :, None] for each in by_beam)
        index = position[..., None].expand(-1, -1, 1, self.alternatives)
        return extended._replace(
            alternative_tokens=extended.alternative_tokens.scatter(2, index, top_tokens),
            alternative_logprobs=extended.alternative_logprobs.scatter(2, index, top.double()),
        )

    def survivors(self, scores: Tensor) -> Tensor:
        """The candidates that stay alive, best first; those that ended have -inf.  scores: # (slots, candidates)"""
        return scores.topk(self.beam_size, dim=1).indices

    def finished(self) -> Tensor:
        if self._ran_fused:
            return self.done
        best = self.alive.logprobs.max(dim=1).values
        penalty = torch.maximum(self.max_penalties, self.penalties[(self.lengths + 1).clamp(max=self.capacity + 1)])
        return (best == _NEG_INF) | (self.completed_scores[:, (self.nbest or self.beam_size) - 1] >= best / penalty)

    def results(self, slot: int) -> list[Hypothesis]:
        return self._results(slice(slot, slot + 1))[0]

    def results_of(self, slots: Sequence[int]) -> list[list[Hypothesis]]:
        return self._results(torch.tensor(slots, device=self.lengths.device)) if slots else []

    def all_results(self) -> list[list[Hypothesis]]:
        return self._results(slice(0, self.slots))

    def best_tokens(self, slot: int) -> tuple[int, ...]:
        return tuple(self.alive.tokens[slot, 0, : int(self.lengths[slot])].tolist())

    def stop(self, slot: int) -> None:
        """Cut the alive hypotheses of a slot at their current length."""
        self.max_lengths[slot] = self.lengths[slot]
        self._cut()

    def scatter_slots(self, slots: Tensor, other: Self) -> None:
        super().scatter_slots(slots, other)
        self.penalties = self._penalty_table(self.capacity)

    def grow(self) -> None:
        super().grow()
        self.penalties = self._penalty_table(self.capacity)

    def graph_key(self) -> Hashable | None:
        return super().graph_key() if type(self) is BeamSearch else None

    def settings(self) -> tuple[Any, ...]:
        return self.beam_size, self.length_penalty, self.nbest

    @property
    def _is_plain(self) -> bool:
        """Whether the kernels do all that is asked for."""
        return type(self) is BeamSearch and not self.observed and not self.processors and not self.alternatives

    def _choose_cpu(self, logits: Tensor, rows: Tensor) -> Choice:
        """The same step in one numba kernel. Rows that are not given have no hypothesis."""
        from regard.kernels.cpu.beam_step import beam_step

        beam_indices, tokens = torch.empty(2, self.slots * self.beam_size, dtype=torch.long)
        self.done = torch.empty_like(self.max_lengths, dtype=torch.bool)
        state = (tensor.numpy() for tensor in self._kernel_state())
        outputs = (tensor.numpy() for tensor in (beam_indices, tokens, self.done))
        settings = (self.eos, *self.limits, MAX_PERIOD, self.nbest or self.beam_size)
        beam_step(logits.numpy(), rows.numpy(), *state, *settings, *outputs)
        self._ran_fused = True
        return Choice(beam_indices, as_input(tokens, self.eos), None)

    def _choose_cuda(self, logits: Tensor) -> Choice:
        """The same step in three Triton kernels; every tensor keeps its address."""
        from regard.kernels.cuda.beam_step import beam_step, exclude

        best = topk_logsumexp(logits, 2 * self.beam_size)
        exclude(best, self.alive.tokens, self.lengths, self.eos, self.limits, MAX_PERIOD)
        rows = torch.empty_like(self.next_tokens)
        beam_step(
            best, self._kernel_state(), self.eos, self.nbest or self.beam_size, (rows, self.next_tokens, self.done)
        )
        self._ran_fused = True
        return Choice(rows.view(-1), as_input(self.next_tokens, self.eos).view(-1), None)

    def _kernel_state(self) -> tuple[Tensor, ...]:
        """Everything that a fused step reads or changes, in the kernels' order."""
        shared = (self.lengths, self.max_lengths, self.max_penalties, self.penalties, self.completed_scores)
        return (*self.alive[:3], *shared, *self.completed[:3], self.completed_lengths, self.completed_ended)

    def _penalty_table(self, capacity: int) -> Tensor:
        penalties = [self.length_penalty.at(length) for length in range(capacity + 2)]
        return torch.tensor(penalties, dtype=torch.float64, device=self.max_lengths.device)

    def _cut(self) -> None:
        """Complete the alive hypotheses of slots that have reached their maximum length."""
        at_limit = (self.lengths >= self.max_lengths)[:, None]
        if not _any(at_limit):
            return
        logprobs = self.alive.logprobs
        self._complete(
            self.alive._replace(logprobs=logprobs.masked_fill(~at_limit, _NEG_INF)), self.lengths, ended=False
        )
        self.alive = self.alive._replace(logprobs=logprobs.masked_fill(at_limit, _NEG_INF))

    def _complete(self, hypotheses: BeamHypotheses, lengths: Tensor, *, ended: bool) -> None:
        """Rank hypotheses of these lengths among the completed ones; -inf marks an empty entry."""
        scores = hypotheses.logprobs / self.penalties[lengths.clamp(max=self.capacity + 1)][:, None]
        self.completed_scores, best = torch.cat((self.completed_scores, scores), dim=1).topk(self.beam_size, dim=1)
        both = (torch.cat(pair, dim=1) for pair in zip(self.completed, hypotheses, strict=True))
        self.completed = BeamHypotheses(*both).select(best)
        new = lengths[:, None].expand_as(hypotheses.logprobs)
        self.completed_lengths = torch.cat((self.completed_lengths, new), dim=1).gather(1, best)
        new_ended = torch.full_like(new, ended, dtype=torch.bool)
        self.completed_ended = torch.cat((self.completed_ended, new_ended), dim=1).gather(1, best)

    def _results(self, slots: slice | Tensor) -> list[list[Hypothesis]]:
        """The hypotheses found for some slots. Each tensor becomes a list once, up to the longest hypothesis."""
        lengths: list[list[int]] = self.completed_lengths[slots, : self.nbest].tolist()
        longest = max(map(max, lengths), default=0)
        buffers = [
            buffer[slots, : self.nbest, :longest] for buffer in self.completed[1 : 5 if self.alternatives else 3]
        ]
        numbers = (self.completed_scores, self.completed_ended, self.completed.logprobs)
        columns = (*(tensor[slots, : self.nbest] for tensor in numbers), *buffers)
        return [
            [self._hypothesis(*each) for each in zip(*slot, strict=True) if each[1] != _NEG_INF]
            for slot in zip(lengths, *(tensor.cpu().numpy().tolist() for tensor in columns), strict=True)
        ]

    def _hypothesis(
        self,
        length: int,
        score: float,
        ended: bool,
        logprob: float,
        tokens: list[int],
        token_logprobs: list[float],
        *others: Any,
    ) -> Hypothesis:
        alternatives: tuple[Any, ...] = ()
        if self.alternatives:
            pairs = zip(*(other[:length] for other in others), strict=True)
            alternatives = tuple(tuple(zip(*pair, strict=True))[: self.alternatives] for pair in pairs)
        without_eos = tuple(tokens[: length - ended])
        return Hypothesis(without_eos, logprob, score, ended, tuple(token_logprobs[:length]), alternatives)


@torch.no_grad()
def beam_search(
    model: DecoderModel[State],
    state: State,
    start_tokens: Tensor,
    *,
    eos: int,
    max_length: MaxLength,
    beam_size: int = 4,
    length_penalty: LengthPenalty | None = None,
) -> list[list[Hypothesis]]:
    """The `beam_size` best outputs of each row, best first, of at most `max_length` tokens, EOS included.

    start_tokens: # (rows,)
    """
    max_lengths = row_max_lengths(start_tokens, max_length)
    strategy = BeamSearch(max_lengths, eos, beam_size, length_penalty=length_penalty, device=start_tokens.device)
    return search(model, state, start_tokens, strategy)


def gather_beams(values: Tensor, indices: Tensor) -> Tensor:
    """Entries of each slot.  values: # (slots, n, …); indices: # (slots, m); returns (slots, m, …)"""
    rest = values.shape[2:]
    index = indices[(..., *[None] * len(rest))].expand(*indices.shape, *rest)
    return values.gather(1, index)


def _any(mask: Tensor) -> bool:
    """Whether any entry is true; always true on a GPU, where checking would wait for the device."""
    return mask.device.type != "cpu" or bool(mask.any())
