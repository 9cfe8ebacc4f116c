"""Outputs that differ: beams in groups, each kept away from what the groups before it chose.

Diverse beam search (Vijayakumar et al. 2016) with Hamming distance: at every step a group's scores for a token fall by
`strength` for each time an earlier group took it at this step. It decides what is looked at; log-probabilities and the
scores that outputs are ranked by stay the model's own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor

from regard.decode.beam import Beams
from regard.decode.observe import Candidates
from regard.decode.penalty import LengthPenalty
from regard.decode.rules import Rule, hide_all, put_rules
from regard.decode.search import Choice, Chooser, Hypothesis
from regard.errors import UserError


class Diverse(Chooser):
    """`beams` outputs of every slot, found by `groups` searches that avoid each other."""

    outputs: int | None = None

    def __init__(
        self,
        limits: Sequence[int],
        end: int,
        beams: int,
        groups: int,
        strength: float,
        *,
        penalty: LengthPenalty | None = None,
        rules: Sequence[Rule] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if groups < 1 or beams % groups:
            raise UserError(f"{beams} beams cannot be put into {groups} equal groups; choose a divisor of the beams.")
        self.slots, self.width, self.strength, self.rules = len(limits), beams, strength, rules
        each = beams // groups
        self.groups = [
            _Group(limits, end, each, penalty=penalty, rules=rules, alternatives=alternatives, device=device)
            for _ in range(groups)
        ]

    @property
    def longest(self) -> int:
        return self.groups[0].longest

    def choose(self, logits: Tensor) -> Choice:
        by_group = logits.view(self.slots, len(self.groups), -1, logits.shape[1])  # (slots, groups, each, vocabulary)
        taken = torch.zeros(self.slots, logits.shape[1], device=logits.device)
        rows, tokens, seen = [], [], []
        for number, group in enumerate(self.groups):
            group.lowered = (self.strength * taken).repeat_interleave(group.width, dim=0)
            choice = group.choose(by_group[:, number].flatten(0, 1))
            assert choice.rows is not None
            assert choice.candidates is not None
            token = choice.tokens.view(self.slots, -1)
            taken = taken.scatter_add(1, token, torch.ones_like(token, dtype=taken.dtype))
            place = choice.rows.view(self.slots, -1) % group.width + number * group.width
            first = torch.arange(self.slots, device=place.device)[:, None] * self.width
            rows.append(first + place)
            tokens.append(token)
            seen.append(choice.candidates._replace(places=choice.candidates.places + number * group.width))
        candidates = Candidates(*(torch.cat(each, dim=1) for each in zip(*seen, strict=True)))
        return Choice(torch.cat(rows, dim=1).flatten(), torch.cat(tokens, dim=1).flatten(), candidates)

    def settled(self) -> Tensor:
        return torch.stack([group.settled() for group in self.groups]).all(dim=0)

    def results(self, slot: int) -> list[Hypothesis]:
        found = {one.tokens: one for group in self.groups for one in group.results(slot)}
        return sorted(found.values(), key=lambda one: -one.score)[: self.outputs]

    def keep(self, slots: Tensor) -> None:
        self.slots = slots.shape[0]
        for group in self.groups:
            group.keep(slots)
        for rule in self.rules:
            rule.keep(slots)

    def put(self, slots: Tensor, other: Self) -> None:
        for mine, theirs in zip(self.groups, other.groups, strict=True):
            mine.put(slots, theirs)
        put_rules(self.rules, other.rules, slots)
        self.slots = self.groups[0].slots

    def clear(self, slots: Tensor) -> None:
        for group in self.groups:
            group.clear(slots)

    def so_far(self, slot: int) -> tuple[int, ...]:
        return self.groups[0].so_far(slot)

    def stop(self, slot: int) -> None:
        for group in self.groups:
            group.stop(slot)


class _Group(Beams):
    """One of the searches; `lowered` is taken off its scores.  # (slots · width, vocabulary)"""

    lowered: Tensor

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        lowered = hide_all(self.rules, logits, self.written()) - self.lowered
        scores, tokens = lowered.topk(min(count, logits.shape[1]), dim=1)
        return scores, tokens, logits.logsumexp(dim=-1, keepdim=True)

    def own_gains(self, gains: Tensor, places: Tensor, tokens: Tensor) -> Tensor:
        by_place = self.lowered.view(self.slots, self.width, -1)[:, 0]  # (slots, vocabulary): alike in every place
        return gains + by_place.gather(1, tokens)

    def keep(self, slots: Tensor) -> None:
        with self._rules_aside():
            super().keep(slots)

    def put(self, slots: Tensor, other: Self) -> None:
        with self._rules_aside(), other._rules_aside():
            super().put(slots, other)

    @contextmanager
    def _rules_aside(self) -> Iterator[None]:
        """They are looked after once, by the search they belong to."""
        rules, self.rules = self.rules, ()
        try:
            yield
        finally:
            self.rules = rules
