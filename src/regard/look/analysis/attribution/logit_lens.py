"""The logit lens: what each layer would write if the layers after it did nothing (nostalgebraist 2020).

The residual stream after each layer goes through the decoder's final norm and the output projection, as the last
layer's does. In a post-norm Transformer every layer ends in a norm of its own and there is no final one.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.models.detokenizer import count_words, token_after
from regard.look.schema import Alternative, Lens, LensCell, LensRequest, Token
from regard.look.trace import Trace
from regard.model.autoregressive import AutoregressiveModel

MAX_POSITIONS = 32
"""Steps of the decoder in one response."""
TOP_TOKENS = 5
"""Tokens that are named of each layer and step."""


class LayerView(NamedTuple):
    """The residual stream after a layer, at some positions; the first is the embedding."""

    states: Tensor  # (tokens, width)
    logits: Tensor  # (tokens, vocab_size)


def look_through_layers(traced_model: TracedAutoregressiveModel, trace: Trace, request: LensRequest) -> Lens:
    """The logit lens of the steps that wrote a trace's output, from the token at `first` on, as many as one response
    holds."""
    target, prefix = trace.header.target, traced_model.prefix_length(trace.header.request)
    first = prefix if request.first is None else request.first
    if not prefix <= first < len(target):
        raise UserError(f"first: found {first}; the tokens that were generated are {prefix} to {len(target) - 1}.")
    written = target[first : first + MAX_POSITIONS]
    ids = [token.id for token in target[: first + len(written) - 1]]
    with traced_model.ablated(trace.header.request):
        views = logit_lens(
            traced_model.model,
            lambda: traced_model.logits(trace.header.request, ids),
            slice(first - 1, None),
        )
    layers: list[list[LensCell]] = []
    before: Tensor | None = None
    for view in views:
        layers.append(_cells(traced_model, target[: first + len(written)], view, before))
        before = view.states
    return Lens(first=first, read=target[first - 1 : first - 1 + len(written)], written=written, layers=layers)


def logit_lens(
    model: nn.Module,
    run: Callable[[], object],
    positions: slice = slice(None),
) -> Iterator[LayerView]:
    """The view of each layer in the pass that `run` makes at once, from the embedding to the last layer."""
    if not isinstance(model, AutoregressiveModel):
        raise UserError("The logit lens reads the layers of a Transformer, and this model is none.")
    states: list[Tensor] = []

    def record_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        states.append(inputs[0][0, positions].detach())

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        states.append(output[0, positions].detach())

    with ExitStack() as stack:
        stack.callback(model.decoder.register_forward_pre_hook(record_input).remove)
        for layer in model.decoder.layers:
            stack.callback(layer.register_forward_hook(record).remove)
        run()
    return (LayerView(state.cpu(), _logits(model, state).cpu()) for state in states)  # each holds a vocabulary


@torch.no_grad()
def _logits(model: AutoregressiveModel, state: Tensor) -> Tensor:
    """The logits of a residual stream.  # (tokens, width) → (tokens, vocab_size)"""
    lm_head = model.embed_tokens if model.lm_head is None else model.lm_head
    logits: Tensor = lm_head.logits(model.decoder.final_norm(state[None]), model.lm_head_bias)[0]
    return logits


def _cells(
    traced_model: TracedAutoregressiveModel, target: list[Token], view: LayerView, before: Tensor | None
) -> list[LensCell]:
    """The cells of a layer. `target` ends with the last token that was written; `before` is the layer before."""
    logits = view.logits.double()
    probabilities = logits.softmax(dim=-1)
    best = probabilities.topk(min(TOP_TOKENS, probabilities.shape[1]))
    norms = view.states.double().norm(dim=-1).tolist()
    cosines = None if before is None else torch.cosine_similarity(view.states.double(), before.double()).tolist()
    cells = []
    for index, (values, ids) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
        position = len(target) - len(logits) + index
        words, read, written = count_words(target[:position]), target[position - 1], target[position]
        tokens = [token_after(traced_model.target_detokenizer, token, read.id, words) for token in ids]
        cells.append(
            LensCell(
                tokens=[Alternative(token=t, probability=p) for t, p in zip(tokens, values, strict=True)],
                probability=float(probabilities[index, written.id]),
                rank=1 + int((logits[index] > logits[index, written.id]).sum()),
                norm=norms[index],
                cosine=None if cosines is None else cosines[index],
            )
        )
    return cells
