"""Recording hidden states: the vectors that a model's logits are computed from.

In a Transformer they are the output of the decoder's layers. Other models have no such place in common, but almost all
end alike: in a linear layer, with the output embedding of every token as its weight. So the hidden states are the input
of the linear layer whose output the logits are. A model that ends otherwise, such as a table of n-grams, has none.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from regard.model.stack import Stack


class HiddenStates:
    """The hidden states of the passes that `record_hidden_states` observes."""

    def __init__(self) -> None:
        self.decoder_output: Tensor | None = None
        self.last_linear: tuple[Tensor, Tensor] | None = None
        """The input and output of the last linear layer."""

    def of(self, logits: Tensor) -> Tensor:
        """Those that the logits of the last pass were computed from.  # (batch, tokens, width); no width if unknown"""
        if self.decoder_output is not None:
            return self.decoder_output
        if self.last_linear is not None and self.last_linear[1] is logits:
            return self.last_linear[0].detach()
        return logits[..., :0]


@contextmanager
def record_hidden_states(model: nn.Module) -> Iterator[HiddenStates]:
    """Observe the passes within the block."""
    hidden_states = HiddenStates()
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Stack):
        with _LinearLayers(hidden_states):
            yield hidden_states
        return

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        hidden_states.decoder_output = output

    handle = decoder.register_forward_hook(record)
    try:
        yield hidden_states
    finally:
        handle.remove()


class _LinearLayers(TorchFunctionMode):
    """Records the last linear layer that was computed."""

    def __init__(self, hidden_states: HiddenStates) -> None:
        super().__init__()
        self.hidden_states = hidden_states

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is functional.linear:
            self.hidden_states.last_linear = args[0], output
        return output
