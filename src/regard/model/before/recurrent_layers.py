"""Recurrent layers, LSTM and GRU, in PyTorch's fused kernels (cuDNN on a GPU).

Weights have the names, shapes and gate order of `torch.nn.LSTM` and `torch.nn.GRU`, so state dicts are interchangeable.
They are plain parameters that are passed to `torch.lstm` and `torch.gru` in every call, because the modules keep a list
of their weights that a cast copy of the model would not replace. PyTorch's GRU applies the reset gate after the
recurrent product; Cho et al. (2014) apply it before.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Cell = Literal["lstm", "gru"]
State = tuple[Tensor, ...]
"""The state of one layer: h of a GRU, h and c of an LSTM.  # (batch, width) each"""
_GATES = {"lstm": 4, "gru": 3}


class RecurrentLayer(nn.Module):
    """One recurrent layer over a sequence, from the first token to the last or, with `reverse`, the other way round."""

    def __init__(self, cell: Cell, inputs: int, width: int, *, reverse: bool = False) -> None:
        super().__init__()
        self.cell, self.width, self.reverse = cell, width, reverse
        gates = _GATES[cell]
        self.weight_ih_l0 = nn.Parameter(torch.empty(gates * width, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(gates * width, width))
        self.bias_ih_l0 = nn.Parameter(torch.zeros(gates * width))
        self.bias_hh_l0 = nn.Parameter(torch.zeros(gates * width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier for the inputs, an orthogonal matrix for each recurrent gate (Cho et al. 2014)."""
        gates = _GATES[self.cell]
        for weight in (*self.weight_ih_l0.data.chunk(gates),):
            nn.init.xavier_uniform_(weight)
        for weight in (*self.weight_hh_l0.data.chunk(gates),):
            if weight.device.type != "meta":
                nn.init.orthogonal_(weight)

    def zero_state(self, rows: int) -> State:
        """The state before the first token."""
        zeros = self.weight_hh_l0.new_zeros(rows, self.width)
        return (zeros, zeros) if self.cell == "lstm" else (zeros,)

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """The output of every token, and the state after the last token of each row.

        x: # (batch, tokens, inputs); lengths: # (batch,), None if no row is padded; gives (batch, tokens, width).
        Outputs of padding are zeros if lengths are given.
        """
        state = self.zero_state(x.shape[0]) if state is None else state
        if x.device.type == "meta":  # counts FLOPs, which PyTorch does not count in its fused kernels
            return self._unrolled(x, state)
        if self.reverse:
            x = reverse_rows(x, lengths)
        if lengths is None:
            output, state = self._run(x, None, state)
        else:
            packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
            order, inverse = packed.sorted_indices, packed.unsorted_indices
            data, state = self._run(packed.data, packed.batch_sizes, tuple(each[order] for each in state))
            state = tuple(each[inverse] for each in state)
            padded = PackedSequence(data, packed.batch_sizes, order, inverse)
            output, _ = pad_packed_sequence(padded, batch_first=True, total_length=x.shape[1])
        return (reverse_rows(output, lengths) if self.reverse else output), state

    def _run(self, x: Tensor, batch_sizes: Tensor | None, state: State) -> tuple[Tensor, State]:
        """x: # (batch, tokens, inputs), or packed (all tokens, inputs) with batch sizes"""
        weights = [self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0]
        first = [each[None].contiguous() for each in state]
        hidden = first if self.cell == "lstm" else first[0]
        function = torch.lstm if self.cell == "lstm" else torch.gru
        if batch_sizes is None:
            output, *last = function(x, hidden, weights, True, 1, 0.0, self.training, False, True)  # type: ignore[call-overload]
        else:
            output, *last = function(x, batch_sizes, hidden, weights, True, 1, 0.0, self.training, False)  # type: ignore[call-overload]
        return output, tuple(each[0] for each in last)

    def step(self, projected: Tensor, state: State) -> State:
        """One token whose input projection (with its bias) has been computed.  projected: # (batch, gates · width)"""
        recurrent = nn.functional.linear(state[0], self.weight_hh_l0, self.bias_hh_l0)
        if self.cell == "lstm":
            i, f, g, o = (projected + recurrent).chunk(4, dim=-1)
            c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
            return o.sigmoid() * c.tanh(), c
        (r, z, n), (r_hidden, z_hidden, n_hidden) = projected.chunk(3, dim=-1), recurrent.chunk(3, dim=-1)
        reset, update = (r + r_hidden).sigmoid(), (z + z_hidden).sigmoid()
        candidate = (n + reset * n_hidden).tanh()
        return (candidate + update * (state[0] - candidate),)

    def _unrolled(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        projected = nn.functional.linear(x, self.weight_ih_l0, self.bias_ih_l0)
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
