"""How likely given outputs are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decode.search import State, Stepper, precise
from regard.errors import UserError


@torch.no_grad()
def score_given(
    stepper: Stepper[State], state: State, start: Tensor, outputs: Sequence[Sequence[int]], *, end: int | None
) -> list[tuple[float, ...]]:
    """The log-probability of each token of each row's output, and of the end behind it, if there is an end.

    start: # (rows,)
    """
    if len(outputs) != start.shape[0]:
        raise UserError(f"There are {len(outputs)} outputs for {start.shape[0]} rows; give one for each.")
    rows = [[*output, *([] if end is None else [end])] for output in outputs]
    found: list[list[float]] = [[] for _ in rows]
    token = start
    for at in range(max((len(row) for row in rows), default=0)):
        logits, state = stepper.step(token[:, None], state)
        token = torch.tensor([row[min(at, len(row) - 1)] if row else 0 for row in rows], device=start.device)
        scores = precise(logits[:, -1])
        gains = (scores.gather(1, token[:, None])[:, 0] - scores.logsumexp(dim=-1)).tolist()
        for each, row, gain in zip(found, rows, gains, strict=True):
            if at < len(row):
                each.append(gain)
    return [tuple(each) for each in found]
