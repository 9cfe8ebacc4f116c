"""One output for each slot: the likeliest token at every step, or one drawn by chance.

Drawing takes one number between 0 and 1 for a slot and step, made from the slot's seed and the step alone. So what is
drawn for a slot depends neither on its company nor on the order of the work, and the same seed gives the same text.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.decode.best import best_tokens, has_kernel, has_triton
from regard.decode.observe import Candidates
from regard.decode.rules import Rule, Written, hide_all
from regard.decode.search import Choice, Hypothesis, Limit, State, Stepper, precise, row_limits, search
from regard.decode.slots import ROOM
from regard.decode.slotted import Slotted
from regard.errors import UserError

SHOWN = 5
"""How many of the likeliest tokens are shown of each step to who watches, what is taken beside them."""


class Single(Slotted):
    """The likeliest token at every step: greedy search."""

    texts, dimension = ("tokens", "gains", "other_tokens", "other_gains"), 1
    fields: tuple[str, ...] = ("limits", "lengths", "tokens", "gains", "done", "chosen", "other_tokens", "other_gains")
    plain = True
    """Whether the likeliest token is taken, whatever it is."""

    def __init__(
        self,
        limits: Sequence[int],
        end: int,
        *,
        rules: Sequence[Rule] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.slots, self.end, self.rules, self.count = len(limits), end, rules, alternatives
        self.limits = torch.tensor(list(limits), device=device)
        self.lengths = torch.zeros_like(self.limits)
        self.tokens = torch.full((self.slots, ROOM), end, device=device)
        self.gains = torch.zeros(self.slots, ROOM, dtype=torch.float64, device=device)
        self.done = torch.zeros_like(self.limits, dtype=torch.bool)
        self.chosen = torch.zeros_like(self.limits)
        """The next tokens, where a kernel writes them always to the same place."""
        shape = (self.slots, ROOM, alternatives)
        self.other_tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self.other_gains = torch.zeros(shape, dtype=torch.float64, device=device)

    @property
    def room(self) -> int:
        return self.tokens.shape[1]

    def choose(self, logits: Tensor) -> Choice:
        if self.is_full:
            self.grow()
        self.reach += 1
        plain = self.plain and not self.watched and not self.rules and not self.count
        if plain and has_triton(logits, 1):
            return self._write_on_gpu(logits)
        if plain and has_kernel(logits):
            return self._write_likeliest(logits)
        logits = precise(logits)
        token, score, normaliser = self.pick(logits)  # (slots, 1) each
        gain = (score - normaliser).double()
        seen = self._seen(logits - normaliser, token, gain) if self.watched else None
        at = self.lengths.clamp(max=self.tokens.shape[1] - 1)[:, None]
        if self.count:
            self.count = min(self.count, logits.shape[1])
            top, which = (logits - normaliser).topk(self.count, dim=1)
            here = at[:, :, None].expand(-1, 1, top.shape[1])
            self.other_tokens.scatter_(1, here, which[:, None])
            self.other_gains.scatter_(1, here, top[:, None].double())
        token = torch.where(self.done, self.end, token[:, 0])
        self.tokens.scatter_(1, at, torch.where(self.done[:, None], self.tokens.gather(1, at), token[:, None]))
        self.gains.scatter_(1, at, torch.where(self.done[:, None], self.gains.gather(1, at), gain))
        self.lengths += ~self.done
        self.done |= (token == self.end) | (self.lengths >= self.limits)
        return Choice(None, token, seen)

    def _write_likeliest(self, logits: Tensor) -> Choice:
        """The same in one go, where that is compiled."""
        from regard.decode.kernels import write_likeliest

        token = torch.empty_like(self.limits)
        facts = (self.tokens, self.gains, self.lengths, self.limits, self.done)
        write_likeliest(logits.numpy(), *(fact.numpy() for fact in facts), self.end, token.numpy())
        return Choice(None, token, None)

    def _write_on_gpu(self, logits: Tensor) -> Choice:
        """The same in three kernels; every tensor stays where it is."""
        from regard.decode.triton_kernels import write_likeliest

        facts = (self.tokens, self.gains, self.lengths, self.limits, self.done)
        write_likeliest(best_tokens(logits, 1), facts, self.end, self.chosen)
        return Choice(None, self.chosen, None)

    def pick(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One token a slot, its score, and log Σ exp of all.  # (slots, 1) each; logits: # (slots, vocabulary)"""
        if not self.rules:
            score, token, normaliser = best_tokens(logits, 1)
            return token, score, normaliser
        token = self.draw(hide_all(self.rules, logits, Written(self.tokens, self.lengths)))[:, None]
        return token, logits.gather(1, token), logits.logsumexp(dim=-1, keepdim=True)

    def draw(self, scores: Tensor) -> Tensor:
        """One of the tokens that may come.  scores: # (slots, vocabulary); gives (slots,)"""
        return scores.argmax(dim=-1)

    def settled(self) -> Tensor:
        return self.done

    def results(self, slot: int) -> list[Hypothesis]:
        length = int(self.lengths[slot])
        return self._hypothesis(slot, self.tokens[slot, :length].tolist(), self.gains[slot, :length].tolist())

    def all_results(self) -> list[list[Hypothesis]]:
        if self.count:
            return super().all_results()
        texts = (fact.cpu().numpy().tolist() for fact in (self.lengths, self.tokens, self.gains))
        return [
            self._hypothesis(slot, tokens[:length], gains[:length])
            for slot, (length, tokens, gains) in enumerate(zip(*texts, strict=True))
        ]

    def _hypothesis(self, slot: int, tokens: list[int], gains: list[float]) -> list[Hypothesis]:
        length = len(tokens)
        ended = length > 0 and tokens[-1] == self.end
        total = sum(gains)
        others: tuple[tuple[tuple[int, float], ...], ...] = ()
        if self.count:
            shown = (self.other_tokens, self.other_gains)
            pairs = [values[slot, :length, : self.count].tolist() for values in shown]
            others = tuple(tuple(zip(*both, strict=True)) for both in zip(*pairs, strict=True))
        return [Hypothesis(tuple(tokens[: length - ended]), total, total, ended, tuple(gains), others)]

    def so_far(self, slot: int) -> tuple[int, ...]:
        return self.results(slot)[0].tokens

    def stop(self, slot: int) -> None:
        self.done[slot] = True

    def _seen(self, scores: Tensor, token: Tensor, gain: Tensor) -> Candidates:
        """What is taken and the likeliest others that may come, best first.

        scores: # (slots, vocabulary), log-probabilities; token, gain: # (slots, 1)
        """
        allowed = hide_all(self.rules, scores, Written(self.tokens, self.lengths))
        others, which = allowed.topk(min(SHOWN, scores.shape[1]), dim=1)
        token = torch.where(self.done[:, None], self.end, token)
        gains = torch.cat((gain, others.double().masked_fill(which == token, float("-inf"))), dim=1)
        gains, order = gains.sort(dim=1, descending=True, stable=True)
        tokens = torch.cat((token, which), dim=1).gather(1, order)
        return Candidates(torch.zeros_like(tokens), tokens, self.gains.sum(dim=1, keepdim=True) + gains)


class Sampled(Single):
    """A token drawn by its probability, after those too unlikely were left out.

    In this order: scores of tokens already written are lowered by `repetition` (Keskar et al. 2019), all are divided by
    `temperature` (0 takes the likeliest), then only the `top_k` likeliest stay, then the fewest that have a share of
    `top_p` together (Holtzman et al. 2020), then those at least `min_p` times as likely as the likeliest (Nguyen et al.
    2024).
    """

    fields = (*Single.fields, "seeds")
    plain = False

    def __init__(
        self,
        limits: Sequence[int],
        end: int,
        *,
        seeds: Sequence[int],
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition: float = 1.0,
        rules: Sequence[Rule] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(limits, end, rules=rules, alternatives=alternatives, device=device)
        if len(seeds) != self.slots:
            raise UserError(f"There are {len(seeds)} seeds for {self.slots} rows; give one for each.")
        self.seeds = torch.tensor([_signed(seed) for seed in seeds], device=device)
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.min_p, self.repetition = min_p, repetition

    def settings(self) -> tuple[Any, ...]:
        return self.temperature, self.top_k, self.top_p, self.min_p, self.repetition

    def pick(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        token = self.draw(hide_all(self.rules, logits, Written(self.tokens, self.lengths)))[:, None]
        return token, logits.gather(1, token), logits.logsumexp(dim=-1, keepdim=True)

    def draw(self, scores: Tensor) -> Tensor:
        if self.repetition != 1.0:
            scores = self._less_repetition(scores)
        if self.temperature == 0.0:
            return scores.argmax(dim=-1)
        number = uniform(self.seeds, self.lengths)[:, None]  # (slots, 1)
        order = None
        if 0 < self.top_k < scores.shape[1]:
            scores, order = scores.topk(self.top_k, dim=-1)
        p = (scores.double() / self.temperature).softmax(dim=-1)
        if self.top_p < 1.0 or self.min_p > 0.0:
            if order is None:
                p, order = p.sort(dim=-1, descending=True)
            p = self._likely(p)
        place = _at_share(p, number)
        return place if order is None else order.gather(1, place[:, None])[:, 0]

    def _likely(self, p: Tensor) -> Tensor:
        """Zero for tokens too unlikely.  p: # (slots, some), likeliest first; they sum to one"""
        if self.top_p < 1.0:
            p = p * (p.cumsum(dim=-1) - p < self.top_p)
        return p * (p >= self.min_p * p[:, :1])

    def _less_repetition(self, scores: Tensor) -> Tensor:
        counts = torch.arange(self.tokens.shape[1], device=scores.device) < self.lengths[:, None]  # (slots, capacity)
        old = torch.zeros_like(scores).scatter_add(1, self.tokens.clamp(min=0), counts.to(scores.dtype)) > 0
        lowered = torch.where(scores > 0, scores / self.repetition, scores * self.repetition)
        return torch.where(old, lowered, scores)


@torch.no_grad()
def greedy_search(stepper: Stepper[State], state: State, start: Tensor, *, end: int, limit: Limit) -> list[Hypothesis]:
    """The likeliest token at every step, up to `limit` tokens, the end included.  start: # (rows,)"""
    chooser = Single(row_limits(start, limit), end, device=start.device)
    return [best for best, *_ in search(stepper, state, start, chooser)]


def uniform(seeds: Tensor, steps: Tensor) -> Tensor:
    """A number from 0 to 1 for each seed and step, as good as drawn by chance, the same on every device.

    SplitMix64 (Steele, Lea & Flood 2014): the state after `steps` additions, mixed.  # (slots,), float64
    """
    x = _mixed(seeds) + (steps + 1) * _signed(0x9E3779B97F4A7C15)
    return _shift(_mixed(x), 11).double() * 2.0**-53


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """To the right, zeros following, as if the numbers had no sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """The same 64 bits as a signed number."""
    return (number + 2**63) % 2**64 - 2**63


def _at_share(p: Tensor, number: Tensor) -> Tensor:
    """The token within whose part of the whole a number from 0 to 1 falls.  p: # (slots, vocabulary)"""
    shares = p.cumsum(dim=-1)
    last = p.shape[1] - 1 - (p.flip(1) > 0).to(torch.uint8).argmax(dim=-1)  # rounding must not fall behind it
    return torch.minimum((shares <= number * shares[:, -1:]).sum(dim=-1), last)
