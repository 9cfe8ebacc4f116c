"""Greedy and beam search over anything that can take a step.

A `Stepper` scores the next token given the one just written and a state, and can move the rows of that state. The
Transformers here are steppers; so is anything else with these two methods. Both searches work on all rows at once, and
a row that has ended no longer counts, though it still takes part until the others have.

Beam search stops a row only when nothing still alive can do better than what is finished: with log-probabilities at
most 0 and a penalty that never falls, an alive hypothesis can at best keep its sum and be divided by the largest
penalty it can still reach.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from regard.decode.penalty import LengthPenalty, PaperPenalty
from regard.errors import UserError

State = TypeVar("State")
Limit = int | Sequence[int]
"""The most tokens an output may have, its end included: for all rows, or for each."""


class Stepper(Protocol[State]):
    """Anything that can take a step."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens: # (rows, 1); gives logits # (rows, 1, vocabulary) and the state behind them"""
        ...

    def reorder(self, state: State, rows: Tensor) -> State:
        """A state whose row i is what row `rows[i]` was."""
        ...


@dataclass(frozen=True)
class Hypothesis:
    """An output: its tokens (without start and end), their log-probability, and the score it was ranked by."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    ended: bool
    """Whether it came to its end, or was cut at the limit."""


@torch.no_grad()
def greedy_search(stepper: Stepper[State], state: State, start: Tensor, *, end: int, limit: Limit) -> list[Hypothesis]:
    """The likeliest token at every step, up to `limit` tokens, the end included.  start: # (rows,)"""
    limits = _limits(start, limit, beams=1)
    token = start[:, None]
    done = torch.zeros_like(start, dtype=torch.bool)
    last = torch.tensor(limits, device=start.device)
    sums = torch.zeros(start.shape[0], dtype=torch.float64, device=start.device)
    written = []
    for length in range(1, max(limits) + 1):
        logits, state = stepper.step(token, state)
        gains, best = logits[:, -1].double().log_softmax(dim=-1).max(dim=-1)  # (rows,)
        sums = torch.where(done, sums, sums + gains)
        written.append(torch.where(done, end, best))
        done = done | (best == end) | (length >= last)
        token = written[-1][:, None]
        if bool(done.all()):
            break
    rows = torch.stack(written, dim=1).tolist()
    found = zip(rows, sums.tolist(), limits, strict=True)
    return [_greedy_hypothesis(row[:longest], total, end) for row, total, longest in found]


def _greedy_hypothesis(row: list[int], total: float, end: int) -> Hypothesis:
    ended = end in row
    tokens = tuple(row[: row.index(end)] if ended else row)
    return Hypothesis(tokens, total, total, ended)


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

    A hypothesis that reaches the limit is cut there and ranked with the others.  start: # (rows,)
    """
    limits = _limits(start, limit, beams)
    search = _Beams(limits, end, beams, penalty or PaperPenalty())
    token = start[:, None]
    for length in range(1, max(limits) + 1):
        logits, state = stepper.step(token, state)
        gains = logits[:, -1].double().log_softmax(dim=-1)  # (rows · width, vocabulary), width 1 at first
        parents, tokens = search.extend(gains, length)
        if search.settled(length):
            break
        state = stepper.reorder(state, parents)
        token = tokens[:, None]
    return search.results()


class _Beams:
    """The alive hypotheses of every row, and those that have ended."""

    def __init__(self, limits: list[int], end: int, beams: int, penalty: LengthPenalty) -> None:
        rows = len(limits)
        self.rows, self.limits, self.end, self.beams, self.penalty = rows, limits, end, beams, penalty
        self.sums = torch.zeros(rows, 1, dtype=torch.float64)  # (rows, width)
        self.written: list[list[tuple[int, ...]]] = [[()] for _ in range(rows)]
        self.finished: list[list[Hypothesis]] = [[] for _ in range(rows)]

    def extend(self, gains: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Take one step: which row of the state each alive hypothesis comes from, and its new token.

        Of the best 2 · beams candidates at most `beams` end here, so as many stay alive, as far as there are so many.
        """
        width, size = self.sums.shape[1], gains.shape[1]
        candidates = self.sums.to(gains.device)[:, :, None] + gains.view(self.rows, width, size)
        count = min(2 * self.beams, width * size)
        best = candidates.flatten(1).topk(count, dim=1)  # (rows, count), chosen on the device, where the scores are
        sums, places = best.values.cpu(), best.indices.cpu()
        alive_width = min(self.beams, width * (size - 1)) if size > 1 else 1
        parents = torch.zeros(self.rows, alive_width, dtype=torch.long)
        tokens = torch.full((self.rows, alive_width), self.end)
        kept = torch.full((self.rows, alive_width), float("-inf"), dtype=torch.float64)
        written: list[list[tuple[int, ...]]] = []
        for row in range(self.rows):
            mine: list[tuple[int, ...]] = []
            for total, place in zip(sums[row].tolist(), places[row].tolist(), strict=True):
                parent, token = divmod(place, size)
                prefix = self.written[row][parent]
                if total == float("-inf"):
                    continue
                if token == self.end:
                    self._finish(row, prefix, total, length, ended=True)
                elif len(mine) < alive_width:
                    parents[row, len(mine)] = row * width + parent
                    tokens[row, len(mine)] = token
                    kept[row, len(mine)] = total
                    mine.append((*prefix, token))
            parents[row, len(mine) :] = row * width
            written.append(mine + [()] * (alive_width - len(mine)))
        self.sums, self.written = kept, written
        return parents.flatten().to(gains.device), tokens.flatten().to(gains.device)

    def settled(self, length: int) -> bool:
        """Whether no row can get a better result; at a row's limit what is alive in it is cut and counted."""
        for row in range(self.rows):
            if length == self.limits[row]:
                for prefix, total in zip(self.written[row], self.sums[row].tolist(), strict=True):
                    if total > float("-inf"):
                        self._finish(row, prefix, total, length, ended=False)
                self.sums[row] = float("-inf")
        return all(self._row_settled(row, length) for row in range(self.rows))

    def _row_settled(self, row: int, length: int) -> bool:
        finished = self.finished[row]
        best_alive = float(self.sums[row].max())
        if best_alive == float("-inf"):
            return True
        largest = max(self.penalty.at(self.limits[row]), self.penalty.at(length + 1))
        return len(finished) == self.beams and finished[-1].score >= best_alive / largest

    def _finish(self, row: int, tokens: tuple[int, ...], total: float, length: int, *, ended: bool) -> None:
        hypothesis = Hypothesis(tokens, total, total / self.penalty.at(length), ended)
        ranked = sorted([*self.finished[row], hypothesis], key=lambda one: -one.score)
        self.finished[row] = ranked[: self.beams]

    def results(self) -> list[list[Hypothesis]]:
        return self.finished


def _limits(start: Tensor, limit: Limit, beams: int) -> list[int]:
    """The limit of each row."""
    if start.dim() != 1:
        raise UserError(
            f"A search starts from one token a row: expected the shape (rows,), found {tuple(start.shape)}."
        )
    limits = [limit] * len(start) if isinstance(limit, int) else list(limit)
    if len(limits) != len(start):
        raise UserError(f"There are {len(limits)} limits for {len(start)} rows; give one for each.")
    if min(limits, default=1) < 1:
        raise UserError(f"The limit is {min(limits)} tokens; an output has at least one, its end.")
    if beams < 1:
        raise UserError(f"A search needs at least one beam; found {beams}.")
    return limits
