"""A stack of recurrent layers that reads a source: an output for every token, and the last state of every layer."""

from typing import NamedTuple

from torch import Tensor, nn

from regard.model.before.recurrent.layers import BidirectionalLayer, Cell, RecurrentLayer, State
from regard.model.before.recurrent.noisy_top_k import NoisyTopK


class Encoded(NamedTuple):
    """What an encoder makes of a source."""

    output: Tensor
    """The top layer's output.  # (batch, tokens, width)"""
    states: list[State]
    """The last state of each layer. Those of two directions are concatenated."""
    layers: list[Tensor]
    """The input and the output of every layer.  # (batch, tokens, width) each"""


class RecurrentEncoder(nn.Module):
    """Recurrent layers on top of each other, in one direction or in both; dropout after each.

    A mixture of experts may stand between the first layer and the second.
    """

    def __init__(
        self,
        cell: Cell,
        inputs: int,
        width: int,
        layers: int,
        *,
        bidirectional: bool,
        dropout: float,
        experts: NoisyTopK | None = None,
    ) -> None:
        super().__init__()
        layer = BidirectionalLayer if bidirectional else RecurrentLayer
        self.layers = nn.ModuleList(layer(cell, width if number else inputs, width) for number in range(layers))
        self.experts = experts
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Encoded:
        """x: # (batch, tokens, inputs); lengths: # (batch,)"""
        states: list[State] = []
        outputs = [x]
        for number, layer in enumerate(self.layers):
            if number == 1 and self.experts is not None:
                x = self.experts(x, lengths)
            x, state = layer(x, lengths=lengths)
            x = self.dropout(x)
            states.append(state)
            outputs.append(x)
        return Encoded(x, states, outputs)
