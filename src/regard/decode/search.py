"""What can be searched, what a search finds, and the simplest search of all.

A `Stepper` scores the next token given the one just written and a state, and can move the rows of that state. The
Transformers here are steppers; so is anything else with these two methods. Searches work on all rows at once. Rows that
have ended no longer count, and leave as soon as they are half of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

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
    limits = row_limits(start, limit, beams=1)
    sums = torch.zeros(start.shape[0], dtype=torch.float64, device=start.device)
    last = torch.tensor(limits, device=start.device)
    written: list[Tensor] = []  # (rows,) of each step
    numbers, token = torch.arange(start.shape[0], device=start.device), start  # the rows still there, and their tokens
    done = torch.zeros_like(start, dtype=torch.bool)  # of the rows still there
    for length in range(1, max(limits) + 1):
        logits, state = stepper.step(token[:, None], state)
        scores = logits[:, -1] if logits.dtype == torch.float64 else logits[:, -1].float()
        top, best = scores.max(dim=-1)
        token = torch.where(done, end, best)
        gains = (top - scores.logsumexp(dim=-1)).double()
        sums = sums.index_add(0, numbers, torch.where(done, 0.0, gains))
        written.append(torch.full_like(start, end).index_copy(0, numbers, token))
        done = done | (best == end) | (length >= last[numbers])
        over = int(done.sum())
        if over == len(done):
            break
        if 2 * over >= len(done):  # moving the others pays
            rest = (~done).nonzero()[:, 0]
            state = stepper.reorder(state, rest)
            numbers, token, done = numbers[rest], token[rest], done[rest]
    rows = torch.stack(written, dim=1).tolist()
    found = zip(rows, sums.tolist(), limits, strict=True)
    return [_greedy_hypothesis(row[:longest], total, end) for row, total, longest in found]


def _greedy_hypothesis(row: list[int], total: float, end: int) -> Hypothesis:
    ended = end in row
    tokens = tuple(row[: row.index(end)] if ended else row)
    return Hypothesis(tokens, total, total, ended)


def row_limits(start: Tensor, limit: Limit, beams: int) -> list[int]:
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
