"""Beam search over anything that can take a step.

Everything stays on the device: the alive hypotheses of each row, the best that have ended, and from which hypothesis
each token came. Texts are put together at the end of a row, by walking back. Once half of the rows are settled, they
leave, and the steps that the others still need are taken without them.

A row stops only when nothing still alive can do better than what is finished: with log-probabilities at most 0 and a
penalty that never falls, an alive hypothesis can at best keep its sum and be divided by the largest penalty it can
still reach.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from regard.decode.penalty import LengthPenalty, PaperPenalty
from regard.decode.search import Hypothesis, Limit, State, Stepper, row_limits

_NEVER = float("-inf")


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
    limits = row_limits(start, limit, beams)
    search = _Beams(limits, end, beams, penalty or PaperPenalty(), start.device)
    token = start[:, None]
    for length in range(1, max(limits) + 1):
        logits, state = stepper.step(token, state)
        parents, tokens = search.extend(logits[:, -1], length)
        settled = search.settled(length)
        if settled.all():
            break
        if 2 * int(settled.sum()) >= len(settled):  # moving the others pays
            parents, tokens = search.leave(settled, parents), search.leave(settled, tokens)
            search.drop(settled)
        state = stepper.reorder(state, parents.flatten())
        token = tokens.flatten()[:, None]
    return search.results()


class _Beams:
    """The alive hypotheses of every row, best first, and those that have ended, best first.

    A hypothesis is known by its place: the step it was written at and which of the alive it was then.
    """

    def __init__(self, limits: list[int], end: int, beams: int, penalty: LengthPenalty, device: torch.device) -> None:
        self.rows, self.limits, self.end, self.beams = len(limits), limits, end, beams
        self.numbers = list(range(self.rows))  # which row of those asked for each one is
        self.found: list[list[Hypothesis]] = [[] for _ in limits]
        self.penalties = [penalty.at(length) for length in range(max(limits) + 2)]
        self.largest = torch.tensor([self.penalties[limit] for limit in limits], dtype=torch.float64, device=device)
        self.sums = torch.zeros(self.rows, 1, dtype=torch.float64, device=device)  # (rows, width), -inf: nothing there
        self.tokens: list[Tensor] = []  # (rows, width) of each step
        self.parents: list[Tensor] = []  # (rows, width): which of the step before
        empty = torch.zeros(self.rows, beams, dtype=torch.long, device=device)
        self.scores = torch.full((self.rows, beams), _NEVER, dtype=torch.float64, device=device)  # of those that ended
        self.totals, self.steps, self.places, self.ended = self.scores, empty, empty, empty.bool()

    def extend(self, logits: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Take one step: which row of the state each alive hypothesis comes from, and its token.  # (rows, width)

        Of the best 2 · beams candidates at most `beams` end here, so as many stay alive, as far as there are so many.
        logits: # (rows · width, vocabulary), width 1 at first
        """
        width, size = self.sums.shape[1], logits.shape[1]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        gains = (logits - logits.logsumexp(dim=-1, keepdim=True)).view(self.rows, width, size)
        candidates = (self.sums[:, :, None].to(gains.dtype) + gains).flatten(1)  # (rows, width · vocabulary)
        chosen = candidates.topk(min(2 * self.beams, width * size), dim=1).indices  # (rows, count), best first
        parents, tokens = chosen // size, chosen % size
        # Sums are kept in float64, whatever the scores came in.
        sums = self.sums.gather(1, parents) + gains.flatten(1).gather(1, chosen).double()
        over = tokens == self.end
        self._finish(
            sums.masked_fill(~over, _NEVER), length, length - 2, parents, torch.ones_like(over)
        )  # what ended here was last written a step ago
        alive_width = min(self.beams, max(1, width * (size - 1)))
        self.sums, kept = sums.masked_fill(over, _NEVER).topk(min(alive_width, sums.shape[1]), dim=1)
        parents, tokens = parents.gather(1, kept), tokens.gather(1, kept)
        self.parents.append(parents)
        self.tokens.append(tokens)
        first = torch.arange(self.rows, device=parents.device)[:, None] * width
        return first + parents, tokens

    def settled(self, length: int) -> Tensor:
        """Which rows can get no better result; at a row's limit what is alive in it is cut and counted.  # (rows,)"""
        if length in self.limits:
            here = torch.tensor([limit == length for limit in self.limits], device=self.sums.device)[:, None]
            places = torch.arange(self.sums.shape[1], device=self.sums.device).expand_as(self.sums)
            cut = self.sums.masked_fill(~here, _NEVER)
            self._finish(cut, length, length - 1, places, torch.zeros_like(places, dtype=torch.bool))
            self.sums = self.sums.masked_fill(here, _NEVER)
        best = self.sums.max(dim=1).values
        reachable = best / self.largest.clamp(min=self.penalties[length + 1])
        return ((best == _NEVER) | (self.scores[:, -1] >= reachable)).cpu()

    def leave(self, settled: Tensor, values: Tensor) -> Tensor:
        """The part of some values that belongs to rows not settled.  values: # (rows, …)"""
        return values[(~settled).nonzero()[:, 0].to(values.device)]

    def drop(self, settled: Tensor) -> None:
        """Write down what was found for the settled rows, and go on with the others."""
        self._write_down([row for row, over in enumerate(settled.tolist()) if over])
        kept = [row for row, over in enumerate(settled.tolist()) if not over]
        self.numbers, self.limits = [self.numbers[row] for row in kept], [self.limits[row] for row in kept]
        self.rows = len(kept)
        self.tokens = [self.leave(settled, step) for step in self.tokens]
        self.parents = [self.leave(settled, step) for step in self.parents]
        self.sums, self.largest, self.scores, self.totals, self.steps, self.places, self.ended = (
            self.leave(settled, values)
            for values in (self.sums, self.largest, self.scores, self.totals, self.steps, self.places, self.ended)
        )

    def _finish(self, totals: Tensor, length: int, step: int, places: Tensor, ended: Tensor) -> None:
        """Rank outputs of this length among those that have ended; -inf stands for none.  all: # (rows, some)"""
        joined = torch.cat((self.scores, totals / self.penalties[length]), dim=1)
        self.scores, best = joined.topk(self.beams, dim=1)
        self.totals = torch.cat((self.totals, totals), dim=1).gather(1, best)
        self.steps = torch.cat((self.steps, torch.full_like(places, step)), dim=1).gather(1, best)
        self.places = torch.cat((self.places, places), dim=1).gather(1, best)
        self.ended = torch.cat((self.ended, ended), dim=1).gather(1, best)

    def results(self) -> list[list[Hypothesis]]:
        self._write_down(range(self.rows))
        return self.found

    def _write_down(self, rows: Iterable[int]) -> None:
        """Walk back from every output that ended in some rows."""
        tokens = [step.tolist() for step in self.tokens]
        parents = [step.tolist() for step in self.parents]
        facts = [fact.tolist() for fact in (self.scores, self.totals, self.steps, self.places, self.ended)]
        for row in rows:
            for score, total, step, place, ended in zip(*(fact[row] for fact in facts), strict=True):
                if score == _NEVER:
                    continue
                written = []
                for at in range(step, -1, -1):
                    written.append(tokens[at][row][place])
                    place = parents[at][row][place]
                self.found[self.numbers[row]].append(Hypothesis(tuple(reversed(written)), total, score, ended))
