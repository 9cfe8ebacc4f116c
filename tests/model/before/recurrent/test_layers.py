"""Recurrent layers against PyTorch's modules, packed sequences included, and steps against whole sequences."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.model.before.recurrent.encoder import RecurrentEncoder
from regard.model.before.recurrent.layers import BidirectionalLayer, RecurrentLayer, reverse_rows
from tests.model.small_models import EXACT

INPUTS, WIDTH, ROWS, TOKENS = 5, 6, 4, 7
LENGTHS = torch.tensor([7, 1, 4, 6])
TORCH = {"lstm": nn.LSTM, "gru": nn.GRU}
cells = pytest.mark.parametrize("cell", ["lstm", "gru"])


def make_layer(cell, *, reverse=False, seed=0):
    torch.manual_seed(seed)
    layer = RecurrentLayer(cell, INPUTS, WIDTH, reverse=reverse).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def torch_layer(cell, ahead, back=None):
    """PyTorch's module with the weights of one layer, or of two that read in opposite directions."""
    module = TORCH[cell](INPUTS, WIDTH, batch_first=True, bidirectional=back is not None).double()
    weights = dict(ahead.state_dict())
    if back is not None:
        weights |= {f"{name}_reverse": tensor for name, tensor in back.state_dict().items()}
    module.load_state_dict(weights)
    return module


def as_state(last, direction=0):
    """The last state of a module of PyTorch in one direction, as a layer gives it."""
    return tuple(each[direction] for each in last) if isinstance(last, tuple) else (last[direction],)


@cells
def test_a_layer_equals_that_of_torch(cell):
    layer, x = make_layer(cell), torch.randn(ROWS, TOKENS, INPUTS, dtype=torch.float64)
    output, state = layer(x)
    expected, last = torch_layer(cell, layer)(x)
    torch.testing.assert_close(output, expected, **EXACT)
    torch.testing.assert_close(state, as_state(last), **EXACT)


@cells
def test_a_layer_continues_from_a_state(cell):
    layer, x = make_layer(cell), torch.randn(ROWS, TOKENS, INPUTS, dtype=torch.float64)
    whole, last = layer(x)
    first, state = layer(x[:, :3])
    second, state = layer(x[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, second), dim=1), whole, **EXACT)
    torch.testing.assert_close(state, last, **EXACT)


@cells
def test_padded_rows_equal_packed_ones_in_both_directions(cell):
    ahead, back = make_layer(cell), make_layer(cell, reverse=True, seed=1)
    x = torch.randn(ROWS, TOKENS, INPUTS, dtype=torch.float64)
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    output, last = torch_layer(cell, ahead, back)(packed)
    expected, _ = pad_packed_sequence(output, batch_first=True)
    for direction, layer in enumerate((ahead, back)):
        found, state = layer(x, None, LENGTHS)
        torch.testing.assert_close(found, expected.chunk(2, dim=-1)[direction], **EXACT)
        torch.testing.assert_close(state, as_state(last, direction), **EXACT)


@cells
def test_gradients_of_padded_rows_equal_those_of_packed_ones(cell):
    layer, x = make_layer(cell), torch.randn(ROWS, TOKENS, INPUTS, dtype=torch.float64)
    module = torch_layer(cell, layer)
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    output, last = module(packed)
    expected, _ = pad_packed_sequence(output, batch_first=True)
    (expected.square().sum() + sum(each.sum() for each in as_state(last))).backward()
    found, state = layer(x, None, LENGTHS)
    (found.square().sum() + sum(each.sum() for each in state)).backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, module.get_parameter(name).grad, **EXACT)


@cells
def test_padding_does_not_change_a_row_in_float32(cell):
    layer, x = make_layer(cell).float(), 50 * torch.randn(ROWS, TOKENS, INPUTS)
    output, state = layer(x, None, LENGTHS)
    alone, alone_state = layer(x[2:3, :4])
    torch.testing.assert_close(output[2:3, :4], alone)
    torch.testing.assert_close(tuple(each[2:3] for each in state), alone_state)
    assert (output[2, 4:] == 0).all()


@cells
def test_steps_equal_the_fused_kernel(cell):
    layer, x = make_layer(cell), torch.randn(ROWS, TOKENS, INPUTS, dtype=torch.float64)
    expected, last = layer(x)
    state, outputs = layer.zero_state(ROWS), []
    for projected in layer.project(x).unbind(1):
        state = layer.step(projected, state)
        outputs.append(state[0])
    torch.testing.assert_close(torch.stack(outputs, dim=1), expected, **EXACT)
    torch.testing.assert_close(state, last, **EXACT)


@cells
def test_a_bidirectional_layer_equals_that_of_torch(cell):
    torch.manual_seed(0)
    layer = BidirectionalLayer(cell, INPUTS, 2 * WIDTH).double()
    x = torch.randn(ROWS, TOKENS, INPUTS, dtype=torch.float64)
    output, state = layer(x)
    expected, last = torch_layer(cell, layer.forward_layer, layer.backward_layer)(x)
    torch.testing.assert_close(output, expected, **EXACT)
    both = tuple(torch.cat(pair, dim=-1) for pair in zip(as_state(last, 0), as_state(last, 1), strict=True))
    torch.testing.assert_close(state, both, **EXACT)


@cells
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_padded_stack_equals_that_of_torch(cell, bidirectional):
    """Several layers, in one direction or both; the last states are those of each layer, at the end of each row."""
    torch.manual_seed(0)
    width, layers = 2 * WIDTH if bidirectional else WIDTH, 3
    encoder = RecurrentEncoder(cell, INPUTS, width, layers, bidirectional=bidirectional, dropout=0.2).double().eval()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    module = TORCH[cell](INPUTS, WIDTH, layers, batch_first=True, bidirectional=bidirectional).double()
    directions = {"forward_layer.": "", "backward_layer.": "_reverse"} if bidirectional else {"": ""}
    module.load_state_dict(
        {
            f"{name.replace('l0', f'l{number}')}{suffix}": layer.get_parameter(f"{direction}{name}")
            for number, layer in enumerate(encoder.layers)
            for direction, suffix in directions.items()
            for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        }
    )
    x = torch.randn(ROWS, TOKENS, INPUTS, dtype=torch.float64)
    output, last = module(pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False))
    expected, _ = pad_packed_sequence(output, batch_first=True)
    found = encoder(x, LENGTHS)
    torch.testing.assert_close(found.output, expected, **EXACT)
    for number, state in enumerate(found.states):
        of_layer = range(number * len(directions), (number + 1) * len(directions))
        both = tuple(
            torch.cat(parts, dim=-1) for parts in zip(*(as_state(last, each) for each in of_layer), strict=True)
        )
        torch.testing.assert_close(state, both, **EXACT)


def test_rows_are_reversed_up_to_their_lengths():
    x = torch.arange(1, 9).view(2, 4, 1)
    assert reverse_rows(x, torch.tensor([2, 4]))[..., 0].tolist() == [[2, 1, 3, 4], [8, 7, 6, 5]]
    assert reverse_rows(x, None)[..., 0].tolist() == [[4, 3, 2, 1], [8, 7, 6, 5]]
