"""Recording hidden states: the vectors that a model's logits are computed from.

In a Transformer they are the output of the decoder's layers. Other models have no such place in common, but the last
thing that they do is the same: each hidden state is multiplied by the output embedding of every token. So what is
recorded there is what enters that multiplication. A model that ends otherwise, such as a table of n-grams, has none.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.model.stack import Stack


@contextmanager
def record_hidden_states(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the hidden states of the passes within the block.  # (batch, tokens, width) each"""
    recorded: list[Tensor] = []
    decoder: Any = getattr(model, "decoder", None)
    if isinstance(decoder, Stack):
        handle = decoder.register_forward_hook(lambda _, inputs, output: recorded.append(output))
        try:
            yield recorded
        finally:
            handle.remove()
        return
    tables = [getattr(getattr(model, name, None), "weight", None) for name in ("lm_head", "embed_tokens")]
    with _LinearInputs([table for table in tables if isinstance(table, Tensor)], recorded):
        yield recorded


class _LinearInputs(TorchFunctionMode):
    """Records the input of every linear layer with one of these weights."""

    def __init__(self, weights: list[Tensor], recorded: list[Tensor]) -> None:
        super().__init__()
        self.weights, self.recorded = weights, recorded

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.linear and any(args[1] is weight for weight in self.weights):
            self.recorded.append(args[0].detach())
        return func(*args, **(kwargs or {}))


def last_hidden_states(recorded: list[Tensor], logits: Tensor) -> Tensor:
    """The hidden states of the last pass's only row, or none of any width.  logits: # (1, tokens, …)"""
    if recorded and recorded[-1].shape[:2] == logits.shape[:2]:
        return recorded[-1][0]
    return torch.empty(logits.shape[1], 0)
