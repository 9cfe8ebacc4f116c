"""The two ways a recurrent decoder uses attention.

**Bahdanau et al. (2015)**: the *previous* state is the query, and the context is an input of the cell, beside the last
token: s_i = cell([E y_{i−1}; c_i], s_{i−1}). The first state is tanh(W h), with h the backward encoder's state at the
first token. The logits come from state, token and context through one more layer ("deep output"). The paper prints
s_{i−1} there; s_i, as in the implementations that followed it, has seen the token. With several layers, the bottom one
attends (as in GNMT), so that those above are computed for all tokens at once.

**Luong et al. (2015)**: the *current* state of the top layer is the query, and the logits come from
h̃ = tanh(W [c; h]). With input feeding h̃ is also an input of the next step, so that the decoder knows what it attended
to. The encoder's last states are the first ones of the decoder. Without input feeding, attention is outside of the
recurrence, and there is no loop over the tokens at all.

Whatever does not depend on the recurrence is computed for all tokens at once: the inputs' part in the gates, the upper
layers, the readout.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.config import Config
from regard.model.before.recurrent.attention_scores import RecurrentAttention, Source
from regard.model.before.recurrent.encoder import Encoded
from regard.model.before.recurrent.layers import Cell, RecurrentLayer, State
from regard.model.before.recurrent.noisy_top_k import NoisyTopK


class BahdanauConfig(Config):
    """The previous state attends, and the context is an input of the cell (Bahdanau et al. 2015)."""

    kind: Literal["bahdanau"] = "bahdanau"
    readout: Literal["maxout", "tanh"] = "tanh"
    """The activation of the layer before the logits: the larger of two features, as in the paper, or tanh."""


class LuongConfig(Config):
    """The current state attends, and the context is used after the recurrent layers (Luong et al. 2015)."""

    kind: Literal["luong"] = "luong"
    input_feeding: bool = True
    """Whether the attentional hidden state is an input of the next step."""


AnyDecoder = Annotated[BahdanauConfig | LuongConfig, Field(discriminator="kind")]


class Readout(nn.Module):
    """The features that logits are computed from: a linear layer, and the larger of two features or tanh."""

    def __init__(self, kind: Literal["maxout", "tanh"], inputs: int, width: int) -> None:
        super().__init__()
        self.pieces = 2 if kind == "maxout" else 1
        self.proj = nn.Linear(inputs, self.pieces * width)
        nn.init.xavier_uniform_(self.proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x: # (…, inputs); gives (…, width)"""
        x = self.proj(x)
        return x.unflatten(-1, (-1, 2)).amax(dim=-1) if self.pieces == 2 else x.tanh()


class FirstState(nn.Module):
    """tanh(W h): the first state of each layer from one vector, the summary of the source."""

    def __init__(self, cell: Cell, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.layers, self.parts = layers, 2 if cell == "lstm" else 1
        self.proj = nn.Linear(inputs, layers * self.parts * width)
        nn.init.xavier_uniform_(self.proj.weight)

    def forward(self, summary: Tensor) -> list[State]:
        """summary: # (batch, inputs)"""
        parts = self.proj(summary).tanh().chunk(self.layers * self.parts, dim=-1)
        return [tuple(parts[start : start + self.parts]) for start in range(0, len(parts), self.parts)]


class AttentiveLayer(nn.Module):
    """A recurrent layer whose previous state attends to the source; the context is an input beside the token."""

    def __init__(self, cell: Cell, inputs: int, context: int, width: int, attention: RecurrentAttention) -> None:
        super().__init__()
        self.inputs = inputs
        self.layer = RecurrentLayer(cell, inputs + context, width)
        self.attention = attention

    def forward(
        self, x: Tensor, state: State, source: Source, attention_hook: AttentionHook | None = None
    ) -> tuple[Tensor, Tensor, State]:
        """x: # (rows, tokens, inputs); gives outputs and contexts (rows, tokens, …) and the last state"""
        from_token, from_context = self.layer.weight_ih_l0.split([self.inputs, source.values.shape[-1]], dim=1)
        projected = nn.functional.linear(x, from_token, self.layer.step_bias)  # (rows, tokens, gates · width)
        outputs, contexts, weights = [], [], []
        for each in projected.unbind(1):
            context, weight = self.attention(state[0][:, None], source)
            state = self.layer.step(torch.addmm(each, context[:, 0], from_context.t()), state)
            outputs.append(state[0])
            contexts.append(context)
            weights.append(weight)
        if attention_hook is not None:
            attention_hook(self.attention, torch.cat(weights, dim=1)[:, None])
        return torch.stack(outputs, dim=1), torch.cat(contexts, dim=1), state


class BahdanauDecoder(nn.Module):
    """A layer that attends to the source, plain layers above it, and a deep output."""

    def __init__(
        self,
        config: BahdanauConfig,
        attention: RecurrentAttention,
        *,
        cell: Cell,
        width: int,
        hidden: int,
        context: int,
        layers: int,
        dropout: float,
        experts: NoisyTopK | None = None,
    ) -> None:
        super().__init__()
        self.first_state = FirstState(cell, context // 2, hidden, layers)
        self.bottom = AttentiveLayer(cell, width, context, hidden, attention)
        self.layers = nn.ModuleList(RecurrentLayer(cell, hidden, hidden) for _ in range(layers - 1))
        self.readout = Readout(config.readout, hidden + width + context, width)
        self.experts = experts
        self.dropout = nn.Dropout(dropout)

    @property
    def attention(self) -> RecurrentAttention:
        return self.bottom.attention

    def start(self, encoded: Encoded) -> list[State]:
        """The states before the first token, from the backward encoder's state at the first token of the source."""
        _, backward = encoded.states[-1][0].chunk(2, dim=-1)
        states: list[State] = self.first_state(backward)
        return states

    def forward(
        self,
        x: Tensor,
        states: list[State],
        source: Source,
        lengths: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> tuple[Tensor, list[State]]:
        """x: # (rows, tokens, width); gives the features of the logits (rows, tokens, width) and the last states

        lengths: # (rows,), of the target, for experts, which do not count padding
        """
        h, context, last = self.bottom(x, states[0], source, attention_hook)
        after = [last]
        for number, (layer, state) in enumerate(zip(self.layers, states[1:], strict=True)):
            h = self.dropout(h)
            if number == 0 and self.experts is not None:
                h = self.experts(h, lengths)
            h, last = layer(h, state)
            after.append(last)
        return self.dropout(self.readout(torch.cat((h, x, context), dim=-1))), after


class LuongDecoder(nn.Module):
    """Recurrent layers, attention from the top one, and the attentional hidden state h̃ = tanh(W [c; h])."""

    def __init__(
        self,
        config: LuongConfig,
        attention: RecurrentAttention,
        *,
        cell: Cell,
        width: int,
        hidden: int,
        context: int,
        layers: int,
        dropout: float,
        experts: NoisyTopK | None = None,
    ) -> None:
        super().__init__()
        self.input_feeding, self.inputs = config.input_feeding, width
        inputs = width + (hidden if config.input_feeding else 0)
        self.layers = nn.ModuleList(
            RecurrentLayer(cell, hidden if number else inputs, hidden) for number in range(layers)
        )
        self.attention = attention
        self.readout = Readout("tanh", context + hidden, hidden)
        self.output_proj = nn.Identity() if width == hidden else nn.Linear(hidden, width, bias=False)
        self.experts = experts
        self.dropout = nn.Dropout(dropout)

    def start(self, encoded: Encoded) -> list[State]:
        """The last states of the encoder's layers; with input feeding, also h̃ before the first token: zeros."""
        fed = (torch.zeros_like(encoded.states[0][0]),)
        return [*encoded.states, fed] if self.input_feeding else encoded.states

    def forward(
        self,
        x: Tensor,
        states: list[State],
        source: Source,
        lengths: Tensor | None = None,
        attention_hook: AttentionHook | None = None,
    ) -> tuple[Tensor, list[State]]:
        """x: # (rows, tokens, width); gives the features of the logits (rows, tokens, width) and the last states

        lengths: # (rows,), of the target, for experts, which do not count padding
        """
        if self.input_feeding:
            h, weights, states = self._step_by_step(x, states, source)
        else:
            h, weights, states = self._all_at_once(x, states, source, lengths)
        if attention_hook is not None:
            attention_hook(self.attention, weights[:, None])
        return self.output_proj(self.dropout(h)), states

    def _all_at_once(
        self, x: Tensor, states: list[State], source: Source, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, list[State]]:
        after: list[State] = []
        for number, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            if number == 1 and self.experts is not None:
                x = self.experts(x, lengths)
            x, last = layer(x, state)
            after.append(last)
            if number < len(self.layers) - 1:
                x = self.dropout(x)
        context, weights = self.attention(x, source)
        return self.readout(torch.cat((context, x), dim=-1)), weights, after

    def _step_by_step(self, x: Tensor, states: list[State], source: Source) -> tuple[Tensor, Tensor, list[State]]:
        bottom = self.layers[0]
        assert isinstance(bottom, RecurrentLayer)
        from_token, from_fed = bottom.weight_ih_l0.split([self.inputs, bottom.width], dim=1)
        projected = nn.functional.linear(x, from_token, bottom.step_bias)  # (rows, tokens, gates · width)
        *states, (fed,) = states
        outputs, weights = [], []
        for each in projected.unbind(1):
            states[0] = bottom.step(torch.addmm(each, fed, from_fed.t()), states[0])
            h = states[0][0]
            for number, layer in enumerate(self.layers[1:], start=1):
                assert isinstance(layer, RecurrentLayer)
                states[number] = layer.step(layer.project(self.dropout(h)), states[number])
                h = states[number][0]
            context, weight = self.attention(h[:, None], source)
            fed = self.readout(torch.cat((context[:, 0], h), dim=-1))
            outputs.append(fed)
            weights.append(weight)
        return torch.stack(outputs, dim=1), torch.cat(weights, dim=1), [*states, (fed,)]
