"""Recurrent layers, LSTM and GRU, in PyTorch's fused kernels (cuDNN on a GPU).

Weights have the names, shapes and gate order of `torch.nn.LSTM` and `torch.nn.GRU`, so state dicts are interchangeable.
They are plain parameters that are passed to `torch.lstm` and `torch.gru` in every call, because the modules keep a list
of their weights that a cast copy of the model would not replace. PyTorch's GRU applies the reset gate after the
recurrent product; Cho et al. (2014) apply it before.

**Padding.** Rows of several lengths are usually packed, for which the host must know the lengths: on a GPU it waits for
them, and the pass cannot be captured as a CUDA graph. Here padding is computed and ignored instead. It follows a row's
last token in both directions, because a reversed row is reversed up to its length, so it only concerns the last state.
The last h is the output of the last token. For the last c, inputs have a feature that says "padding" and sets an
LSTM's forget gate to exactly 1 and its input gate to exactly 0: c stays as it is.
"""

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

# cuDNN copies the weights into one chunk in every call, which takes less time than keeping casts of them in one.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")

Cell = Literal["lstm", "gru"]
State = tuple[Tensor, ...]
"""The state of one layer: h of a GRU, h and c of an LSTM.  # (batch, width) each"""
_GATES = {"lstm": 4, "gru": 3}
_PADDING_FEATURES = 8
"""One feature would do; with eight, rows stay aligned to 16 bytes in bfloat16."""
_SATURATED = 1e4 / _PADDING_FEATURES
"""The sigmoid of ±1e4 is exactly 1 or 0, whatever a token adds to it."""


class RecurrentLayer(nn.Module):
    """One recurrent layer over a sequence, from the first token to the last or, with `reverse`, the other way round."""

    def __init__(self, cell: Cell, inputs: int, width: int, *, reverse: bool = False) -> None:
        super().__init__()
        self.cell, self.width, self.reverse = cell, width, reverse
        gates = _GATES[cell]
        self.weight_ih_l0 = nn.Parameter(torch.empty(gates * width, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(gates * width, width))
        self.bias_ih_l0 = nn.Parameter(torch.empty(gates * width))
        self.bias_hh_l0 = nn.Parameter(torch.empty(gates * width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for the inputs, an orthogonal matrix for each recurrent gate (Cho et al. 2014).

        An LSTM's forget gate has a bias of 1, so that it remembers at first (Jozefowicz et al. 2015).
        """
        gates = _GATES[self.cell]
        for weight in (*self.weight_ih_l0.data.chunk(gates),):
            nn.init.xavier_uniform_(weight)
        for weight in (*self.weight_hh_l0.data.chunk(gates),):
            if weight.device.type != "meta":
                nn.init.orthogonal_(weight)
        for bias in (self.bias_ih_l0, self.bias_hh_l0):
            nn.init.zeros_(bias)
        if self.cell == "lstm":
            nn.init.ones_(self.bias_ih_l0.data[self.width : 2 * self.width])

    def zero_state(self, rows: int) -> State:
        """The state before the first token."""
        zeros = self.weight_hh_l0.new_zeros(rows, self.width)
        return (zeros, zeros) if self.cell == "lstm" else (zeros,)

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """The output of every token, and the state after the last token of each row.

        x: # (batch, tokens, inputs); lengths: # (batch,), None if no row is padded; gives (batch, tokens, width).
        Outputs of padding are zeros.
        """
        state = self.zero_state(x.shape[0]) if state is None else state
        if x.device.type == "meta":  # counts FLOPs, which PyTorch does not count in its fused kernels
            return self._unrolled(x, state)
        if self.reverse:
            x = reverse_rows(x, lengths)
        if lengths is None:
            output, state = self._run(x, self.weight_ih_l0, state)
        else:
            output, state = self._run_padded(x, state, lengths)
        return (reverse_rows(output, lengths) if self.reverse else output), state

    def project(self, x: Tensor) -> Tensor:
        """What inputs add to the gates, for `step`.  x: # (…, inputs); gives (…, gates · width)"""
        return nn.functional.linear(x, self.weight_ih_l0, self.step_bias)

    @property
    def step_bias(self) -> Tensor:
        """The biases that `step` leaves to its caller: an LSTM's are both added to the same sums."""
        return self.bias_ih_l0 + self.bias_hh_l0 if self.cell == "lstm" else self.bias_ih_l0

    def step(self, projected: Tensor, state: State) -> State:
        """One token, given what `project` made of it.  projected: # (batch, gates · width)"""
        h, width = state[0], self.width
        if self.cell == "lstm":
            gates = torch.addmm(projected, h, self.weight_hh_l0.t())  # i, f, g, o
            i, f = gates[:, : 2 * width].sigmoid().chunk(2, dim=-1)
            g, o = gates[:, 2 * width : 3 * width].tanh(), gates[:, 3 * width :].sigmoid()
            c = torch.addcmul(f * state[1], i, g)
            return o * c.tanh(), c
        recurrent = nn.functional.linear(h, self.weight_hh_l0, self.bias_hh_l0)  # r, z, n
        both = (projected[:, : 2 * width] + recurrent[:, : 2 * width]).sigmoid()
        reset, update = both.chunk(2, dim=-1)
        candidate = torch.addcmul(projected[:, 2 * width :], reset, recurrent[:, 2 * width :]).tanh()
        return (torch.lerp(candidate, h, update),)

    def _run(self, x: Tensor, weight_ih: Tensor, state: State) -> tuple[Tensor, State]:
        """x: # (batch, tokens, inputs)"""
        weights = [weight_ih, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0]
        first = [each[None].contiguous() for each in state]
        # cuDNN can only differentiate what it computed in training mode.
        train = self.training or torch.is_grad_enabled()
        if self.cell == "lstm":
            output, h, c = torch.lstm(x, first, weights, True, 1, 0.0, train, False, True)
            return output, (h[0], c[0])
        output, h = torch.gru(x, first[0], weights, True, 1, 0.0, train, False, True)
        return output, (h[0],)

    def _run_padded(self, x: Tensor, state: State, lengths: Tensor) -> tuple[Tensor, State]:
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]  # (batch, tokens)
        weight: Tensor = self.weight_ih_l0
        if self.cell == "lstm":
            flag = padding.to(x.dtype)[..., None].expand(-1, -1, _PADDING_FEATURES)
            # Filled on the device: a list of numbers would be copied from the host, which a CUDA graph cannot capture.
            gate = torch.cat([weight.new_full((self.width,), value) for value in (-_SATURATED, _SATURATED, 0.0, 0.0)])
            x = torch.cat((x, flag), dim=-1)
            weight = torch.cat((weight, gate[:, None].expand(-1, _PADDING_FEATURES)), dim=1)
        output, (_, *rest) = self._run(x, weight, state)
        last = (lengths.to(x.device) - 1).clamp(min=0)[:, None, None].expand(-1, 1, self.width)
        return output.masked_fill(padding[..., None], 0), (output.gather(1, last)[:, 0], *rest)

    def _unrolled(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        projected = self.project(x)
        outputs = []
        for each in projected.unbind(1):
            state = self.step(each, state)
            outputs.append(state[0])
        return torch.stack(outputs, dim=1), state


class BidirectionalLayer(nn.Module):
    """Two recurrent layers over the same sequence, one in each direction; their outputs are concatenated."""

    def __init__(self, cell: Cell, inputs: int, width: int) -> None:
        super().__init__()
        self.forward_layer = RecurrentLayer(cell, inputs, width // 2)
        self.backward_layer = RecurrentLayer(cell, inputs, width // 2, reverse=True)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """x: # (batch, tokens, inputs); gives (batch, tokens, width), and the last states, concatenated too"""
        ahead, ahead_state = self.forward_layer(x, None, lengths)
        back, back_state = self.backward_layer(x, None, lengths)
        state = tuple(torch.cat(pair, dim=-1) for pair in zip(ahead_state, back_state, strict=True))
        return torch.cat((ahead, back), dim=-1), state


def reverse_rows(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Each row from its last token to its first; padding stays where it is.  x: # (batch, tokens, …)"""
    if lengths is None:
        return x.flip(1)
    position = torch.arange(x.shape[1], device=x.device)
    index = torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)  # (batch, tokens)
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand_as(x))


def pack_states(states: Sequence[State]) -> dict[str, Tensor]:
    """The states of all layers by name, as a `RecurrentState` keeps them."""
    return {f"{number}.{part}": tensor for number, state in enumerate(states) for part, tensor in enumerate(state)}


def unpack_states(rows: dict[str, Tensor]) -> list[State]:
    """The reverse of `pack_states`."""
    states: dict[str, list[Tensor]] = {}
    for name, tensor in rows.items():
        states.setdefault(name.partition(".")[0], []).append(tensor)
    return [tuple(parts) for parts in states.values()]
