"""Constrained beam search: outputs that contain required words, wherever they fit best.

Grid beam search with a fixed beam size (Hokamp & Liu 2017; Post & Vilar 2018): besides its most likely tokens, every
hypothesis is also extended with each token that continues a required word. The beam is divided among hypotheses by the
number of required tokens they contain, so that those with an unlikely required word are not pruned at once. No
hypothesis may end before it contains all its words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from regard.decode.beam import BeamCandidates, BeamSearch
from regard.decode.strategy import LengthPenalty, LogitsProcessor
from regard.errors import UserError

_NEG_INF = float("-inf")
_MAX_STATES = 20_000
"""The largest state space that is searched for the fewest tokens still needed."""


@dataclass(frozen=True)
class RequiredWord:
    """A word that may be written in several ways, as token sequences, of which an output contains at least one."""

    anywhere: tuple[tuple[int, ...], ...]
    initial: tuple[tuple[int, ...], ...] = ()
    """Those that count only as the very first tokens of the output. If there are any, the others do not count there."""

    @classmethod
    def of(cls, word: "Word") -> "RequiredWord":
        return word if isinstance(word, RequiredWord) else cls((tuple(word),))

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        return (*self.anywhere, *self.initial)

    @property
    def longest(self) -> int:
        return max(map(len, self.sequences))

    def mapped(self, ids: Mapping[int, int]) -> "RequiredWord":
        """The same word in other token ids."""
        ways = (
            tuple(tuple(ids[token] for token in sequence) for sequence in form)
            for form in (self.anywhere, self.initial)
        )
        return RequiredWord(*ways)


Word = Sequence[int] | RequiredWord
Words = tuple[RequiredWord, ...]
Matched = tuple[int, ...] | None
"""The number of matched tokens of each of a word's sequences, -1 if it can no longer occur; None once one occurred."""


@dataclass(frozen=True)
class ConstraintProgress:
    """The number of matched tokens of each required word: those that the output ends with, or all once it occurred."""

    words: Words
    matched: tuple[Matched, ...]

    @classmethod
    def start(cls, words: Sequence[Word]) -> "ConstraintProgress":
        required = tuple(map(RequiredWord.of, words))
        return cls(required, tuple((0,) * len(word.sequences) for word in required))

    @property
    def matched_tokens(self) -> int:
        pairs = zip(self.words, self.matched, strict=True)
        return sum(word.longest if matched is None else max(0, *matched) for word, matched in pairs)

    @property
    def tokens_left(self) -> int:
        """The fewest tokens that complete all words; words may overlap."""
        return _fewest_tokens(self.words, self.matched)

    def next_tokens(self) -> set[int]:
        """The tokens that continue an incomplete word."""
        return {
            sequence[count]
            for word, matched in zip(self.words, self.matched, strict=True)
            if matched is not None
            for sequence, count in list(zip(word.sequences, matched, strict=True))[_first_that_counts(word, matched) :]
            if count >= 0
        }

    def after(self, token: int) -> "ConstraintProgress":
        return ConstraintProgress(self.words, _advance(self.words, self.matched, token))


@lru_cache(maxsize=1 << 16)
def _advance(words: Words, matched: tuple[Matched, ...], token: int) -> tuple[Matched, ...]:
    return tuple(_advance_word(word, counts, token) for word, counts in zip(words, matched, strict=True))


def _advance_word(word: RequiredWord, matched: Matched, token: int) -> Matched:
    if matched is None:
        return None
    counts, first = list(matched), _first_that_counts(word, matched)
    for index, sequence in enumerate(word.sequences[first:], start=first):
        count = counts[index]
        if index < len(word.anywhere):
            counts[index] = _longest_match(sequence, count, token)
        elif count >= 0:
            counts[index] = count + 1 if sequence[count] == token else -1
        if counts[index] == len(sequence):
            return None
    return tuple(counts)


def _first_that_counts(word: RequiredWord, matched: tuple[int, ...]) -> int:
    """The index of the first sequence that may begin here: at the start of an output, of the initial ones."""
    initial = matched[len(word.anywhere) :]
    return len(word.anywhere) if initial and not any(initial) else 0


def _longest_match(sequence: tuple[int, ...], count: int, token: int) -> int:
    """The length of the sequence's longest prefix that the output ends with after one more token."""
    suffix = (*sequence[:count], token)
    lengths = range(count + 1, -1, -1)
    return next(length for length in lengths if sequence[:length] == suffix[len(suffix) - length :])


@lru_cache(maxsize=1 << 12)
def _fewest_tokens(words: Words, matched: tuple[Matched, ...]) -> int:
    """By breadth-first search if the state space is small; otherwise as if the words did not overlap."""
    tokens = {token for word in words for sequence in word.sequences for token in sequence}
    visited, frontier, steps = {matched}, [matched], 0
    goal = (None,) * len(words)
    while goal not in visited:
        frontier = [new for old in frontier for token in tokens if (new := _advance(words, old, token)) not in visited]
        visited.update(frontier)
        frontier, steps = list(dict.fromkeys(frontier)), steps + 1
        if len(visited) > _MAX_STATES:
            pairs = zip(words, matched, strict=True)
            return sum(_tokens_of_word(word, counts) for word, counts in pairs if counts is not None)
    return steps


def _tokens_of_word(word: RequiredWord, matched: tuple[int, ...]) -> int:
    return min(len(sequence) - count for sequence, count in zip(word.anywhere, matched, strict=False))


class ConstrainedBeamSearch(BeamSearch):
    """Beam search in which the outputs of slot i contain every word of `required[i]`."""

    def __init__(
        self,
        max_lengths: Sequence[int],
        eos: int,
        beam_size: int,
        required: Sequence[Sequence[Word]],
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
            if not all(all(RequiredWord.of(word).sequences) for word in words):
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
