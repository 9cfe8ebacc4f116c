"""Constrained beam search: outputs that contain required words, wherever they fit best.

Grid beam search with a fixed beam size (Hokamp & Liu 2017; Post & Vilar 2018): besides its most likely tokens, every
hypothesis is also extended with each token that continues a required word. The beam is divided among hypotheses by the
number of required tokens they contain, so that those with an unlikely required word are not pruned at once. No
hypothesis may end before it contains all its words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Self

import torch
from torch import Tensor

from regard.decode.beam import BeamCandidates, BeamSearch
from regard.decode.strategy import LengthPenalty, LogitsProcessor
from regard.errors import UserError

_NEG_INF = float("-inf")
_MAX_STATES = 20_000
"""The largest state space that is searched for the fewest tokens still needed."""
Words = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ConstraintProgress:
    """The number of matched tokens of each required word: those that the output ends with, or all once it occurred."""

    words: Words
    matched: tuple[int, ...]

    @classmethod
    def start(cls, words: Sequence[Sequence[int]]) -> "ConstraintProgress":
        return cls(tuple(map(tuple, words)), (0,) * len(words))

    @property
    def matched_tokens(self) -> int:
        return sum(self.matched)

    @property
    def tokens_left(self) -> int:
        """The fewest tokens that complete all words; words may overlap."""
        return _fewest_tokens(self.words, self.matched)

    def next_tokens(self) -> set[int]:
        """The tokens that continue an incomplete word."""
        pairs = zip(self.words, self.matched, strict=True)
        return {word[count] for word, count in pairs if count < len(word)}

    def after(self, token: int) -> "ConstraintProgress":
        return ConstraintProgress(self.words, _advance(self.words, self.matched, token))


@lru_cache(maxsize=1 << 16)
def _advance(words: Words, matched: tuple[int, ...], token: int) -> tuple[int, ...]:
    return tuple(_advance_word(word, count, token) for word, count in zip(words, matched, strict=True))


def _advance_word(word: tuple[int, ...], count: int, token: int) -> int:
    """The length of the word's longest prefix that the output ends with after one more token."""
    if count == len(word):
        return count
    suffix = (*word[:count], token)
    return next(length for length in range(count + 1, -1, -1) if word[:length] == suffix[len(suffix) - length :])


@lru_cache(maxsize=1 << 12)
def _fewest_tokens(words: Words, matched: tuple[int, ...]) -> int:
    """By breadth-first search if the state space is small; otherwise as if the words did not overlap."""
    if prod(len(word) + 1 for word in words) > _MAX_STATES:
        return sum(map(len, words)) - sum(matched)
    goal = tuple(map(len, words))
    tokens = {token for word in words for token in word}
    visited, frontier, steps = {matched}, [matched], 0
    while goal not in visited:
        frontier = [new for old in frontier for token in tokens if (new := _advance(words, old, token)) not in visited]
        visited.update(frontier)
        frontier, steps = list(dict.fromkeys(frontier)), steps + 1
    return steps


class ConstrainedBeamSearch(BeamSearch):
    """Beam search in which the outputs of slot i contain every token sequence of `required[i]`."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        eos: int,
        beam_size: int,
        required: Sequence[Sequence[Sequence[int]]],
        *,
        length_penalty: LengthPenalty | None = None,
        processors: Sequence[LogitsProcessor] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(
            max_lengths,
            eos,
            beam_size,
            length_penalty=length_penalty,
            processors=processors,
            alternatives=alternatives,
            device=device,
        )
        if len(required) != self.slots:
            raise UserError(f"Found required words for {len(required)} rows, but there are {self.slots} rows.")
        for max_length, words in zip(max_lengths, required, strict=True):
            if any(not word for word in words):
                raise UserError("A required word has no tokens; leave it out.")
            if (total := ConstraintProgress.start(words).tokens_left) >= max_length:
                raise UserError(
                    f"The required words have {total} tokens, but the output may have at most {max_length}, EOS "
                    "included; allow a longer output or require less."
                )
        self.progress = [[ConstraintProgress.start(words)] * beam_size for words in required]
        self._candidate_progress: list[list[ConstraintProgress]] = []

    def candidates(self, logits: Tensor) -> BeamCandidates:
        vocab_size = logits.shape[1]
        normalizer = logits.logsumexp(dim=-1, keepdim=True)  # (slots · beam_size, 1)
        logprobs = self.process(logits) - normalizer
        totals = (self.alive.logprobs.view(-1, 1) + logprobs.double()).view(self.slots, self.beam_size, vocab_size)
        pairs = [self._slot_candidates(slot, totals[slot]) for slot in range(self.slots)]
        count = max(len(each) for each in pairs) + 1  # the last one is always padding
        padded = [[*each, *[(0, self.eos)] * (count - len(each))] for each in pairs]
        beam_indices, tokens = torch.tensor(padded, device=logits.device).unbind(dim=2)  # (slots, count) each
        self._candidate_progress = [
            [self.progress[slot][beam].after(token) for beam, token in row] for slot, row in enumerate(padded)
        ]
        index = beam_indices * vocab_size + tokens
        counts = torch.tensor([[len(each)] for each in pairs], device=logits.device)
        is_padding = torch.arange(count, device=logits.device) >= counts
        scores = totals.flatten(1).gather(1, index).masked_fill(is_padding, _NEG_INF)
        token_logprobs = logprobs.view(self.slots, -1).gather(1, index).double()
        all_logprobs = logits - normalizer if self.alternatives else logits
        hypotheses = self.extend(beam_indices, tokens, token_logprobs, all_logprobs)._replace(logprobs=scores)
        return BeamCandidates(hypotheses, beam_indices, tokens, scores)

    def survivors(self, scores: Tensor) -> Tensor:
        survivors = [self._divide_beam(slot, row) for slot, row in enumerate(scores.tolist())]
        self.progress = [[self._candidate_progress[slot][index] for index in row] for slot, row in enumerate(survivors)]
        return torch.tensor(survivors, device=scores.device)

    def select_slots(self, slots: Tensor) -> None:
        super().select_slots(slots)
        self.progress = [self.progress[slot] for slot in slots.tolist()]

    def scatter_slots(self, slots: Tensor, other: Self) -> None:
        super().scatter_slots(slots, other)
        self.progress += [[] for _ in range(self.slots - len(self.progress))]
        for slot, progress in zip(slots.tolist(), other.progress, strict=True):
            self.progress[slot] = progress

    def _slot_candidates(self, slot: int, totals: Tensor) -> list[tuple[int, int]]:
        """(beam, token) of the slot's candidates: the best overall, and all that continue a required word.

        Candidates that leave no room for the remaining words and EOS are excluded.  totals: # (beam_size, vocab_size)
        """
        vocab_size, left = totals.shape[1], int(self.max_lengths[slot] - self.lengths[slot]) - 1
        constrained = bool(self.progress[slot][0].words)
        count = min((4 if constrained else 2) * self.beam_size, totals.numel())
        best = totals.flatten().topk(count).indices.tolist()
        required = [
            beam * vocab_size + token
            for beam, progress in enumerate(self.progress[slot])
            for token in (progress.next_tokens() or {self.eos})
            if constrained
        ]
        pairs = []
        for index in dict.fromkeys(best + required):
            beam, token = index // vocab_size, index % vocab_size
            progress = self.progress[slot][beam]
            if float(totals[beam, token]) == _NEG_INF:
                continue
            if constrained:
                too_early = token == self.eos and progress.tokens_left > 0
                too_late = token != self.eos and progress.after(token).tokens_left + 1 > left
                if too_early or too_late:
                    continue
            pairs.append((beam, token))
        return pairs

    def _divide_beam(self, slot: int, scores: list[float]) -> list[int]:
        """`beam_size` candidates, taken round-robin from banks of equal numbers of matched tokens, best first."""
        banks: dict[int, list[int]] = {}
        for index in sorted(range(len(scores)), key=lambda index: -scores[index]):
            if scores[index] != _NEG_INF:
                banks.setdefault(self._candidate_progress[slot][index].matched_tokens, []).append(index)
        chosen: list[int] = []
        while len(chosen) < self.beam_size and any(banks.values()):
            for matched_tokens in sorted(banks, reverse=True):
                if banks[matched_tokens] and len(chosen) < self.beam_size:
                    chosen.append(banks[matched_tokens].pop(0))
        chosen.sort(key=lambda index: -scores[index])
        return chosen + [len(scores) - 1] * (self.beam_size - len(chosen))
