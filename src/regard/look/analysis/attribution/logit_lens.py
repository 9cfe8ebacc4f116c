"""The logit lens: what each layer would write if the layers after it did nothing (nostalgebraist 2020).

The residual stream after each layer goes through the decoder's final norm and the output projection, as the last
layer's does. In a post-norm Transformer every layer ends in a norm of its own and there is no final one.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.model.autoregressive import AutoregressiveModel


class LayerView(NamedTuple):
    """The residual stream after a layer, at every position; the first is the embedding."""

    states: Tensor  # (tokens, width)
    logits: Tensor  # (tokens, vocab_size)


@torch.no_grad()
def logit_lens(model: nn.Module, run: Callable[[], object]) -> list[LayerView]:
    """The view of each layer in the pass that `run` makes, from the embedding to the last layer."""
    if not isinstance(model, AutoregressiveModel):
        raise UserError("The logit lens reads the layers of a Transformer, and this model is none.")
    states: list[Tensor] = []

    def record_input(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        states.append(inputs[0][0].detach())

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        states.append(output[0].detach())

    with ExitStack() as stack:
        stack.callback(model.decoder.register_forward_pre_hook(record_input).remove)
        for layer in model.decoder.layers:
            stack.callback(layer.register_forward_hook(record).remove)
        run()
    lm_head = model.embed_tokens if model.lm_head is None else model.lm_head
    return [
        LayerView(state.cpu(), lm_head.logits(model.decoder.final_norm(state[None]), model.lm_head_bias)[0].cpu())
        for state in states
    ]
