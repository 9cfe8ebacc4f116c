"""Beam search: the best few continuations of every slot, step by step.

Everything stays on the device and has a fixed shape: the alive hypotheses of each slot, best first, and the best that
have ended. A slot starts with one hypothesis; the other places hold -inf until there are more.

A slot is settled only when nothing still alive can do better than what is finished: with log-probabilities at most 0
and a penalty that never falls, an alive hypothesis can at best keep its sum and be divided by the largest penalty it
can still reach.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from regard.decode.best import best_tokens, has_kernel, has_triton
from regard.decode.observe import Candidates
from regard.decode.penalty import LengthPenalty, PaperPenalty
from regard.decode.rules import Rule, Written, hide_all
from regard.decode.search import Choice, Hypothesis, Limit, State, Stepper, precise, row_limits, search
from regard.decode.slots import ROOM
from regard.decode.slotted import Slotted
from regard.errors import UserError

_NEVER = float("-inf")


class Texts(NamedTuple):
    """Hypotheses of every slot with their history."""

    totals: Tensor  # (slots, some)
    tokens: Tensor  # (slots, some, capacity)
    gains: Tensor  # (slots, some, capacity)
    other_tokens: Tensor  # (slots, some, capacity, alternatives)
    other_gains: Tensor  # (slots, some, capacity, alternatives)

    def pick(self, places: Tensor) -> "Texts":
        """Some of them, by their places.  places: # (slots, fewer or more)"""
        return Texts(*(_take(tensor, places) for tensor in self))


class Beams(Slotted):
    """The `beams` best outputs of every slot. One that reaches the limit is cut there and ranked with the others."""

    outputs: int | None = None
    """How many of the best are given; all, if None."""
    compiled = False
    """Whether the last step was the compiled one."""
    fields = ("limits", "largest", "lengths", "scores", "found_lengths", "ended", "over", "chosen", "alive", "found")
    texts, dimension = ("alive", "found"), 2

    def __init__(
        self,
        limits: Sequence[int],
        end: int,
        beams: int,
        *,
        penalty: LengthPenalty | None = None,
        rules: Sequence[Rule] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if beams < 1:
            raise UserError(f"A search needs at least one beam; found {beams}.")
        self.penalty = penalty or PaperPenalty()
        self.slots, self.width, self.end, self.rules, self.count = len(limits), beams, end, rules, alternatives
        self.limits = torch.tensor(list(limits), device=device)
        self.lengths = torch.zeros_like(self.limits)  # of everything alive in a slot
        self.largest = torch.tensor([self.penalty.at(limit) for limit in limits], dtype=torch.float64, device=device)
        self.penalties = self._penalties(ROOM)
        empty = torch.zeros(self.slots, beams, ROOM, dtype=torch.long, device=device)
        nothing = torch.full((self.slots, beams), _NEVER, dtype=torch.float64, device=device)
        others = empty[..., None].expand(-1, -1, -1, alternatives)
        self.alive = Texts(nothing.clone(), empty, empty.double(), others, others.double())
        self.alive.totals[:, 0] = 0.0
        self.found = Texts(*(tensor.clone() for tensor in self.alive._replace(totals=nothing)))
        self.over = torch.zeros_like(self.limits, dtype=torch.bool)
        """Which slots are settled, where the compiled step has found out already."""
        self.chosen = torch.zeros_like(nothing, dtype=torch.long)
        """The next tokens, where a kernel writes them always to the same place."""
        self.scores = nothing.clone()  # what the found are ranked by
        self.found_lengths = torch.zeros_like(nothing, dtype=torch.long)  # tokens, their end included where they ended
        self.ended = torch.zeros_like(nothing, dtype=torch.bool)

    def choose(self, logits: Tensor) -> Choice:
        """Of the best 2 · beams candidates at most `beams` end here, so as many stay alive, as far as there are."""
        if self.is_full:
            self.grow()
        self.reach += 1
        plain = type(self) is Beams and not self.watched and not self.rules and not self.count
        if plain and has_triton(logits, 2 * self.width):
            return self._advance_on_gpu(logits)
        if plain and has_kernel(logits):
            return self._advance(logits)
        logits = precise(logits)
        pool, places, tokens, merits = self.candidates(logits)
        over = tokens == self.end
        if self._any(over):
            self._finish(pool._replace(totals=pool.totals.masked_fill(~over, _NEVER)), self.lengths + 1, True)
        kept = self.survivors(merits.masked_fill(over, _NEVER))  # (slots, width)
        self.alive = pool.pick(kept)
        self.alive.totals.masked_fill_(_take(over, kept), _NEVER)
        places, tokens = _take(places, kept), _take(tokens, kept)
        self.lengths = self.lengths + 1
        self._cut()
        first = torch.arange(self.slots, device=places.device)[:, None] * self.width
        return Choice((first + places).flatten(), tokens.flatten(), self.seen)

    def _advance(self, logits: Tensor) -> Choice:
        """The same in one go, where that is compiled."""
        from regard.decode.kernels import advance_beams

        rows, tokens = torch.empty(2, self.slots * self.width, dtype=torch.long)
        self.over = torch.empty_like(self.limits, dtype=torch.bool)
        made = (rows, tokens, self.over)
        facts = (fact.numpy() for fact in self._facts())
        advance_beams(logits.numpy(), *facts, self.end, *(each.numpy() for each in made))
        self.compiled = True
        return Choice(rows, tokens, None)

    def _advance_on_gpu(self, logits: Tensor) -> Choice:
        """The same in three kernels; every tensor stays where it is."""
        from regard.decode.triton_kernels import advance_beams

        best = best_tokens(logits, 2 * self.width)
        rows = torch.empty_like(self.chosen)
        advance_beams(best, self._facts(), self.end, (rows, self.chosen, self.over))
        self.compiled = True
        return Choice(rows.view(-1), self.chosen.view(-1), None)

    def _facts(self) -> tuple[Tensor, ...]:
        """All that a compiled step changes or goes by, in its order."""
        facts = (self.lengths, self.limits, self.largest, self.penalties, self.scores)
        return (*self.alive[:3], *facts, *self.found[:3], self.found_lengths, self.ended)

    def candidates(self, logits: Tensor) -> tuple[Texts, Tensor, Tensor, Tensor]:
        """The best continuations of each slot, best first: their rows, their tokens, and what they are chosen by."""
        best, tokens, normaliser = self.best(logits, 2 * self.width)  # (slots · width, some)
        gains = (best - normaliser).double()
        merits = (self.alive.totals.view(-1, 1) + gains).view(self.slots, -1)  # (slots, width · some)
        merits, chosen = merits.topk(min(2 * self.width, merits.shape[1]), dim=1)
        places, tokens = chosen // best.shape[1], tokens.view(self.slots, -1).gather(1, chosen)
        gains = self.own_gains(gains.view(self.slots, -1).gather(1, chosen), places, tokens)
        totals = self.alive.totals.gather(1, places) + gains
        scores = logits - normaliser if self.count else logits
        return *self.extended(places, tokens, totals, gains, scores), merits

    def best(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """What each row's candidates are: their scores, best first, their tokens, and log Σ exp of all scores."""
        if not self.rules:
            return best_tokens(logits, count)
        hidden = hide_all(self.rules, logits, self.written())
        scores, tokens = hidden.topk(min(count, logits.shape[1]), dim=1)
        return scores, tokens, logits.logsumexp(dim=-1, keepdim=True)

    def own_gains(self, gains: Tensor, places: Tensor, tokens: Tensor) -> Tensor:
        """The model's own log-probabilities of candidates, where they were ranked by something else."""
        return gains

    def extended(
        self, places: Tensor, tokens: Tensor, totals: Tensor, gains: Tensor, scores: Tensor
    ) -> tuple[Texts, Tensor, Tensor]:
        """Alive hypotheses with one token more.  all: # (slots, some), but scores: # (slots · width, vocabulary)"""
        self.seen = Candidates(places, tokens, totals)
        texts = self.alive.pick(places)
        at = self.lengths.clamp(max=self.room - 1)[:, None, None].expand(*places.shape, 1)
        texts = texts._replace(
            totals=totals,
            tokens=texts.tokens.scatter(2, at, tokens[:, :, None]),
            gains=texts.gains.scatter(2, at, gains[:, :, None]),
        )
        if self.count:
            self.count = min(self.count, scores.shape[1])
            top, which = scores.topk(self.count, dim=1)  # (slots · width, alternatives)
            here = at[..., None].expand(-1, -1, 1, top.shape[1])
            top, which = (_take(each.view(self.slots, self.width, -1), places)[:, :, None] for each in (top, which))
            texts = texts._replace(
                other_tokens=texts.other_tokens.scatter(2, here, which),
                other_gains=texts.other_gains.scatter(2, here, top.double()),
            )
        return texts, places, tokens

    def survivors(self, merits: Tensor) -> Tensor:
        """Which candidates go on, best first; those that ended have -inf.  merits: # (slots, candidates)"""
        return merits.topk(self.width, dim=1).indices

    def written(self) -> Written:
        return Written(self.alive.tokens.flatten(0, 1), self.lengths.repeat_interleave(self.width))

    def settled(self) -> Tensor:
        if self.compiled:
            return self.over
        best = self.alive.totals.max(dim=1).values
        reachable = best / torch.maximum(self.largest, self.penalties[(self.lengths + 1).clamp(max=self.room + 1)])
        return (best == _NEVER) | (self.scores[:, -1] >= reachable)

    def results(self, slot: int) -> list[Hypothesis]:
        return self._read(slice(slot, slot + 1))[0]

    def all_results(self) -> list[list[Hypothesis]]:
        return self._read(slice(0, self.slots))

    def _read(self, slots: slice) -> list[list[Hypothesis]]:
        """What was found for some slots. Each tensor is turned into a list once, as far as there are tokens in it."""
        lengths: list[list[int]] = self.found_lengths[slots, : self.outputs].tolist()
        longest = max(map(max, lengths), default=0)
        texts = [text[slots, : self.outputs, :longest] for text in self.found[1 : 5 if self.count else 3]]
        facts = (*(fact[slots, : self.outputs] for fact in (self.scores, self.ended, self.found.totals)), *texts)
        return [
            [self._hypothesis(*each) for each in zip(*slot, strict=True) if each[1] != _NEVER]
            for slot in zip(lengths, *(fact.cpu().numpy().tolist() for fact in facts), strict=True)
        ]

    def _hypothesis(
        self, length: int, score: float, ended: bool, total: float, tokens: list[int], gains: list[float], *others: Any
    ) -> Hypothesis:
        alternatives: tuple[Any, ...] = ()
        if self.count:
            pairs = zip(*(other[:length] for other in others), strict=True)
            alternatives = tuple(tuple(zip(*both, strict=True))[: self.count] for both in pairs)
        text = tuple(tokens[: length - ended])
        return Hypothesis(text, total, score, ended, tuple(gains[:length]), alternatives)

    def put(self, slots: Tensor, other: Self) -> None:
        super().put(slots, other)
        self.penalties = self._penalties(self.room)

    def grow(self) -> None:
        super().grow()
        self.penalties = self._penalties(self.room)

    def recorded_as(self) -> Hashable | None:
        return super().recorded_as() if type(self) is Beams else None

    def settings(self) -> tuple[Any, ...]:
        return self.width, self.penalty

    def so_far(self, slot: int) -> tuple[int, ...]:
        return tuple(self.alive.tokens[slot, 0, : int(self.lengths[slot])].tolist())

    def stop(self, slot: int) -> None:
        """What is alive is cut here."""
        self.limits[slot] = self.lengths[slot]
        self._cut()

    def _any(self, which: Tensor) -> bool:
        """Whether there is one, where asking costs nothing; yes where it would mean waiting for the device."""
        return which.device.type != "cpu" or bool(which.any())

    @property
    def room(self) -> int:
        return self.alive.tokens.shape[2]

    def _penalties(self, room: int) -> Tensor:
        each = [self.penalty.at(length) for length in range(room + 2)]
        return torch.tensor(each, dtype=torch.float64, device=self.limits.device)

    def _cut(self) -> None:
        """At a slot's limit what is alive in it is cut and counted."""
        here = (self.lengths >= self.limits)[:, None]
        if not self._any(here):
            return
        self._finish(self.alive._replace(totals=self.alive.totals.masked_fill(~here, _NEVER)), self.lengths, False)
        self.alive = self.alive._replace(totals=self.alive.totals.masked_fill(here, _NEVER))

    def _finish(self, texts: Texts, lengths: Tensor, ended: bool) -> None:
        """Rank texts of these lengths among those that were found; a total of -inf stands for none."""
        scores = texts.totals / self.penalties[lengths.clamp(max=self.room + 1)][:, None]
        self.scores, best = torch.cat((self.scores, scores), dim=1).topk(self.width, dim=1)
        joined = Texts(*(torch.cat(both, dim=1) for both in zip(self.found, texts, strict=True)))
        self.found = joined.pick(best)
        new = lengths[:, None].expand_as(texts.totals)
        self.found_lengths = torch.cat((self.found_lengths, new), dim=1).gather(1, best)
        self.ended = torch.cat((self.ended, torch.full_like(new, ended, dtype=torch.bool)), dim=1).gather(1, best)


@torch.no_grad()
def beam_search(
    stepper: Stepper[State],
    state: State,
    start: Tensor,
    *,
    end: int,
    limit: Limit,
    beams: int = 4,
    penalty: LengthPenalty | None = None,
) -> list[list[Hypothesis]]:
    """For each row its `beams` best outputs, best first, of at most `limit` tokens, the end included.

    start: # (rows,)
    """
    chooser = Beams(row_limits(start, limit), end, beams, penalty=penalty, device=start.device)
    return search(stepper, state, start, chooser)


def _take(values: Tensor, places: Tensor) -> Tensor:
    """Values at some places of each slot.  values: # (slots, some, …); places: # (slots, wanted)"""
    more = values.shape[2:]
    index = places[(..., *[None] * len(more))].expand(*places.shape, *more)
    return values.gather(1, index)
