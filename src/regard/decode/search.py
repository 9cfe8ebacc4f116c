"""The search loop, over anything that can take a decoding step.

A `DecoderModel` computes the logits of the next token given the last one and a state, such as a KV cache, whose rows
can be reordered. A `SearchStrategy` turns logits into the next tokens: the most likely one (`Greedy`), a sampled one
(`Sampler`), the best continuations (`BeamSearch`). `search` alternates between the two until every slot is finished,
and drops finished slots as soon as they are half of all.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from regard.decode.cuda_graphs import graph_pool_for, search_with_graphs
from regard.decode.observer import Observer, Step
from regard.decode.strategy import Choice, Hypothesis, SearchStrategy, SlottedStrategy, upcast
from regard.errors import UserError

MaxLength = int | Sequence[int]
"""The maximum number of tokens of an output, EOS included: one for all rows, or one per row."""


class DecoderState(Protocol):
    """The state of a model between steps, such as a KV cache, with one row per hypothesis."""

    def reorder_beams(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Row i becomes a copy of row `rows[i]`. Rows form groups of equal size, one group per source.

        Group j gets the source of group `sources[j]`; without `sources` every group keeps its own, so that no encoder
        output has to be moved.
        """
        ...


State = TypeVar("State", bound=DecoderState)

_FORCED_TOKENS = 256
"""Tokens of an output that are scored in one step, by a model that takes several."""


class DecoderModel(Protocol[State]):
    """Anything that can take a decoding step.

    If it has a true attribute `takes_rows`, `step` also takes the rows that are needed, and gives only their logits.
    """

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens: # (rows, 1); returns logits # (rows, 1, vocab_size) and the state after them"""
        ...


@torch.no_grad()
def search(
    model: DecoderModel[State],
    state: State,
    start_tokens: Tensor,
    strategy: SearchStrategy,
    observer: Observer | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses that the strategy finds for each row, best first.  start_tokens: # (rows,)"""
    strategy.observed = observer is not None
    beam_size = strategy.beam_size
    if beam_size > 1:
        rows = torch.arange(start_tokens.shape[0], device=start_tokens.device)
        state.reorder_beams(rows.repeat_interleave(beam_size))
    tokens = start_tokens.repeat_interleave(beam_size)
    has_graphs = observer is None and getattr(model, "supports_cuda_graphs", False)
    pool = graph_pool_for(model, strategy) if has_graphs else None
    if pool is not None:
        assert isinstance(strategy, SlottedStrategy)
        return search_with_graphs(pool, model, state, tokens, strategy)
    outputs = list(range(strategy.slots))  # the row that each slot decodes
    found: list[list[Hypothesis]] = [[] for _ in outputs]
    for number in range(1, strategy.max_steps + 1):
        if observer is None or not observer.attention:
            choice, state = take_step(model, state, tokens, strategy)
        else:
            logits, state = model.step(tokens[:, None], state, attention_hook=observer.on_attention)  # type: ignore[call-arg]
            choice = strategy.choose(logits[:, -1])
        if observer is not None and choice.candidates is not None:
            observer.on_step(
                Step(number, tuple(outputs), tokens, choice.candidates, choice.beam_indices, choice.tokens)
            )
        finished = strategy.finished().cpu().numpy()
        beam_indices, tokens, remaining = choice.beam_indices, choice.tokens, None
        if finished.all():
            break
        if 2 * finished.sum() >= len(finished):  # dropping them pays for moving the others
            for slot in finished.nonzero()[0].tolist():
                found[outputs[slot]] = strategy.results(slot)
            remaining = torch.from_numpy((~finished).nonzero()[0]).to(tokens.device)
            outputs = [outputs[slot] for slot in remaining.tolist()]
            strategy.select_slots(remaining)
            rows = (remaining[:, None] * beam_size + torch.arange(beam_size, device=tokens.device)).flatten()
            beam_indices, tokens = rows if beam_indices is None else beam_indices[rows], tokens[rows]
        if beam_indices is not None:
            state.reorder_beams(beam_indices, remaining)
    for slot, output in enumerate(outputs):
        found[output] = strategy.results(slot)
    return found


def take_step(
    model: DecoderModel[State], state: State, tokens: Tensor, strategy: SearchStrategy
) -> tuple[Choice, State]:
    """One step of the model, and what the strategy chooses after it.  tokens: # (rows,)

    A model that can do so computes only the rows that can still change the output.
    """
    rows = strategy.live_rows() if getattr(model, "takes_rows", False) else None
    if rows is None:
        logits, state = model.step(tokens[:, None], state)
        return strategy.choose(logits[:, -1]), state
    logits, state = model.step(tokens[:, None], state, rows=rows)  # type: ignore[call-arg]
    return strategy.choose_live(logits[:, -1], rows), state


@torch.no_grad()
def score_forced(
    model: DecoderModel[State], state: State, start_tokens: Tensor, outputs: Sequence[Sequence[int]], *, eos: int | None
) -> list[tuple[float, ...]]:
    """Teacher forcing: the log-probability of each token of given outputs, and of EOS after them if there is one.

    start_tokens: # (rows,); one output per row
    """
    if len(outputs) != start_tokens.shape[0]:
        raise UserError(f"Found {len(outputs)} outputs for {start_tokens.shape[0]} rows; give one for each row.")
    rows = [[*output, *([] if eos is None else [eos])] for output in outputs]
    found: list[list[float]] = [[] for _ in rows]
    longest = max((len(row) for row in rows), default=0)
    has_room = getattr(model, "has_room", None)  # only such a model takes several tokens in one step
    width = _FORCED_TOKENS if has_room is not None and has_room(state, longest) else 1
    for first in range(0, longest, width):
        # Rows are padded with 0; a step of several tokens knows how many are real.
        targets = [(row[first : first + width] + [0] * width)[: min(width, longest - first)] for row in rows]
        counts = [min(max(len(row) - first, 0), width) for row in rows]
        forced = torch.tensor(targets, device=start_tokens.device)  # (rows, tokens)
        inputs = torch.cat((start_tokens[:, None], forced[:, :-1]), dim=1)
        real = {} if width == 1 else {"counts": torch.tensor(counts, device=start_tokens.device)}
        logits, state = model.step(inputs, state, **real)
        start_tokens = forced[:, -1]
        logits = upcast(logits)
        logprobs = (logits.gather(2, forced[..., None])[..., 0] - logits.logsumexp(dim=-1)).tolist()
        for each, row, count in zip(found, logprobs, counts, strict=True):
            each += row[:count]
    return [tuple(each) for each in found]


def row_max_lengths(start_tokens: Tensor, max_length: MaxLength) -> list[int]:
    """The maximum length of each row."""
    if start_tokens.dim() != 1:
        raise UserError(
            f"A search starts from one token per row; found start tokens of shape {tuple(start_tokens.shape)}."
        )
    lengths = [max_length] * len(start_tokens) if isinstance(max_length, int) else list(max_length)
    if len(lengths) != len(start_tokens):
        raise UserError(f"Found {len(lengths)} maximum lengths for {len(start_tokens)} rows; give one for each row.")
    if min(lengths, default=1) < 1:
        raise UserError(f"The maximum length is {min(lengths)}; it must be at least 1, for EOS.")
    return lengths
