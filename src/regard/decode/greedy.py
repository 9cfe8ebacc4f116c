"""Greedy search: the most likely token at every step."""

from collections.abc import Sequence

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
    LogitsProcessor,
    SlottedStrategy,
    apply_processors,
    as_input,
    topk_logsumexp,
    upcast,
    uses_numba,
    uses_triton,
)

_OBSERVED_CANDIDATES = 5
"""The number of most likely tokens that an observer receives, besides the one chosen."""


class Greedy(SlottedStrategy):
    """One output per slot. Subclasses change how the token is chosen (`select`)."""

    slot_tensors: tuple[str, ...] = (
        "max_lengths",
        "lengths",
        "tokens",
        "token_logprobs",
        "done",
        "next_tokens",
        "alternative_tokens",
        "alternative_logprobs",
    )
    token_buffers = ("tokens", "token_logprobs", "alternative_tokens", "alternative_logprobs")
    token_dim = 1
    takes_argmax = True
    """Whether the most likely token is always the one chosen, so that the fused kernels can be used."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        eos: int,
        *,
        processors: Sequence[LogitsProcessor] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.slots, self.eos, self.processors, self.alternatives = len(max_lengths), eos, processors, alternatives
        self.max_lengths = torch.tensor(list(max_lengths), device=device)
        self.lengths = torch.zeros_like(self.max_lengths)
        self.tokens = torch.full((self.slots, INITIAL_CAPACITY), eos, device=device)
        self.token_logprobs = torch.zeros(self.slots, INITIAL_CAPACITY, dtype=torch.float64, device=device)
        self.done = torch.zeros_like(self.max_lengths, dtype=torch.bool)
        self.next_tokens = torch.zeros_like(self.max_lengths)
        """Written by the CUDA kernel, always at the same address."""
        shape = (self.slots, INITIAL_CAPACITY, alternatives)
        self.alternative_tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self.alternative_logprobs = torch.zeros(shape, dtype=torch.float64, device=device)

    @property
    def capacity(self) -> int:
        return self.tokens.shape[1]

    def choose(self, logits: Tensor) -> Choice:
        self._count_step()
        if self._is_plain and uses_triton(logits, 1):
            return self._choose_cuda(logits)
        if self._is_plain and uses_numba(logits):
            return self._choose_cpu(logits, torch.arange(self.slots))
        logits = upcast(logits)
        token, logit, normalizer = self.select(logits)  # (slots, 1) each
        logprob = (logit - normalizer).double()
        candidates = self._candidates(logits - normalizer, token, logprob) if self.observed else None
        position = self.lengths.clamp(max=self.capacity - 1)[:, None]
        if self.alternatives:
            self._record_alternatives(logits - normalizer, position)
        token = torch.where(self.done, self.eos, token[:, 0])
        done = self.done[:, None]
        self.tokens.scatter_(1, position, torch.where(done, self.tokens.gather(1, position), token[:, None]))
        old_logprob = self.token_logprobs.gather(1, position)
        self.token_logprobs.scatter_(1, position, torch.where(done, old_logprob, logprob))
        self.lengths += ~self.done
        self.done |= (token == self.eos) | (self.lengths >= self.max_lengths)
        return Choice(None, as_input(token, self.eos), candidates)

    def live_rows(self) -> Tensor | None:
        return (~self.done).nonzero()[:, 0] if not self.observed and bool(self.done.any()) else None

    def choose_live(self, logits: Tensor, rows: Tensor) -> Choice:
        if not self._is_plain or not uses_numba(logits):
            return super().choose_live(logits, rows)
        self._count_step()
        return self._choose_cpu(logits, rows)

    def select(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One token for each slot, its logit, and the log-sum-exp of all.  # (slots, 1) each

        logits: # (slots, vocab_size)
        """
        if not self.processors and not any(self.limits):
            logit, token, normalizer = topk_logsumexp(logits, 1)
            return token, logit, normalizer
        token = self._process(logits).argmax(dim=-1, keepdim=True)
        return token, logits.gather(1, token), logits.logsumexp(dim=-1, keepdim=True)

    def finished(self) -> Tensor:
        return self.done

    def results(self, slot: int) -> list[Hypothesis]:
        length = int(self.lengths[slot])
        return [
            self._hypothesis(slot, self.tokens[slot, :length].tolist(), self.token_logprobs[slot, :length].tolist())
        ]

    def all_results(self) -> list[list[Hypothesis]]:
        if self.alternatives:
            return super().all_results()
        rows = (tensor.cpu().numpy().tolist() for tensor in (self.lengths, self.tokens, self.token_logprobs))
        return [
            [self._hypothesis(slot, tokens[:length], logprobs[:length])]
            for slot, (length, tokens, logprobs) in enumerate(zip(*rows, strict=True))
        ]

    def best_tokens(self, slot: int) -> tuple[int, ...]:
        tokens = self.tokens[slot, : int(self.lengths[slot])].tolist()
        return tuple(tokens[:-1] if tokens and tokens[-1] == self.eos else tokens)

    def stop(self, slot: int) -> None:
        self.done[slot] = True

    def _process(self, logits: Tensor) -> Tensor:
        generated = GeneratedTokens(self.tokens, self.lengths)
        logits = apply_processors(self.processors, logits, generated)
        return apply_limits(self.limits, self.eos, logits, generated)

    @property
    def _is_plain(self) -> bool:
        """Whether the kernels do all that is asked for."""
        return self.takes_argmax and not self.observed and not self.processors and not self.alternatives

    def _choose_cpu(self, logits: Tensor, rows: Tensor) -> Choice:
        """The same step in one numba kernel. Rows that are not given are done."""
        from regard.kernels.cpu.beam_step import greedy_step

        token = torch.empty_like(self.max_lengths)
        state = (self.tokens, self.token_logprobs, self.lengths, self.max_lengths, self.done)
        arrays = (tensor.numpy() for tensor in state)
        greedy_step(logits.numpy(), rows.numpy(), *arrays, self.eos, *self.limits, MAX_PERIOD, token.numpy())
        return Choice(None, as_input(token, self.eos), None)

    def _choose_cuda(self, logits: Tensor) -> Choice:
        """The same step in three Triton kernels; every tensor keeps its address."""
        from regard.kernels.cuda.beam_step import exclude, greedy_step

        state = (self.tokens, self.token_logprobs, self.lengths, self.max_lengths, self.done)
        best = topk_logsumexp(logits, 1 + (self.limits.min_length > 0) + (self.limits.max_repeats > 0))
        exclude(best, self.tokens, self.lengths, self.eos, self.limits, MAX_PERIOD)
        greedy_step(best, state, self.eos, self.next_tokens)
        return Choice(None, as_input(self.next_tokens, self.eos), None)

    def _record_alternatives(self, logprobs: Tensor, position: Tensor) -> None:
        """logprobs: # (slots, vocab_size); position: # (slots, 1)"""
        self.alternatives = min(self.alternatives, logprobs.shape[1])
        top, tokens = logprobs.topk(self.alternatives, dim=1)
        index = position[:, :, None].expand(-1, 1, self.alternatives)
        self.alternative_tokens.scatter_(1, index, tokens[:, None])
        self.alternative_logprobs.scatter_(1, index, top[:, None].double())

    def _hypothesis(self, slot: int, tokens: list[int], token_logprobs: list[float]) -> Hypothesis:
        length = len(tokens)
        ended = length > 0 and tokens[-1] == self.eos
        logprob = sum(token_logprobs)
        alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
        if self.alternatives:
            buffers = (self.alternative_tokens, self.alternative_logprobs)
            columns = [buffer[slot, :length, : self.alternatives].tolist() for buffer in buffers]
            alternatives = tuple(tuple(zip(*pair, strict=True)) for pair in zip(*columns, strict=True))
        return Hypothesis(tuple(tokens[: length - ended]), logprob, logprob, ended, tuple(token_logprobs), alternatives)

    def _candidates(self, logprobs: Tensor, token: Tensor, logprob: Tensor) -> Candidates:
        """The chosen token and the most likely others that are allowed, best first.

        logprobs: # (slots, vocab_size); token, logprob: # (slots, 1)
        """
        others, other_tokens = self._process(logprobs).topk(min(_OBSERVED_CANDIDATES, logprobs.shape[1]), dim=1)
        token = torch.where(self.done[:, None], self.eos, token)
        others = others.double().masked_fill(other_tokens == token, float("-inf"))
        ranked, order = torch.cat((logprob, others), dim=1).sort(dim=1, descending=True, stable=True)
        tokens = torch.cat((token, other_tokens), dim=1).gather(1, order)
        return Candidates(torch.zeros_like(tokens), tokens, self.token_logprobs.sum(dim=1, keepdim=True) + ranked)


@torch.no_grad()
def greedy_search(
    model: DecoderModel[State], state: State, start_tokens: Tensor, *, eos: int, max_length: MaxLength
) -> list[Hypothesis]:
    """The greedy output of each row, of at most `max_length` tokens, EOS included.  start_tokens: # (rows,)"""
    strategy = Greedy(row_max_lengths(start_tokens, max_length), eos, device=start_tokens.device)
    return [best for best, *_ in search(model, state, start_tokens, strategy)]
