"""Recurrent encoder–decoders against the same models written with PyTorch's modules, and attention against formulas."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from regard.errors import UserError
from regard.model import read_config
from regard.model.before.recurrent.attention_scores import RecurrentAttentionConfig, Source
from tests.model.before.recurrent.test_properties import ATTENTION, BASE, LENGTHS, LUONG, pairs
from tests.model.small_models import EXACT, build

cells = pytest.mark.parametrize("cell", ["lstm", "gru"])


def torch_stack(cell, layers):
    """PyTorch's module with the weights of these layers."""
    inputs, width = layers[0].weight_ih_l0.shape[1], layers[0].width
    kind = nn.LSTM if cell == "lstm" else nn.GRU
    module = kind(inputs, width, num_layers=len(layers), batch_first=True).double()
    weights = {
        name.replace("l0", f"l{number}"): tensor
        for number, layer in enumerate(layers)
        for name, tensor in layer.state_dict().items()
    }
    module.load_state_dict(weights)
    return module


def embed(model, tokens):
    return model.embed_tokens.weight[tokens] * model.config.width**0.5


@cells
def test_first_states_equal_modules_of_torch(cell):
    """Sutskever et al. 2014: the states of all encoder layers start the decoder."""
    config = read_config(BASE | {"kind": "recurrent", "cell": cell, "layers": 3, "summary_input": "first_state"})
    model = build(config)
    source, target = pairs(config)
    encoder, decoder = torch_stack(cell, model.encoder.layers), torch_stack(cell, model.decoder.layers)
    packed = pack_padded_sequence(embed(model, source), LENGTHS, batch_first=True, enforce_sorted=False)
    _, last = encoder(packed)
    output, _ = decoder(embed(model, target), last)
    logits = output @ model.decoder.output_proj.weight.T @ model.embed_tokens.weight.T + model.lm_head_bias
    torch.testing.assert_close(model(source, target, source_lengths=LENGTHS), logits, **EXACT)


def test_a_reversed_source_is_read_from_its_last_token():
    settings = BASE | {"kind": "recurrent", "summary_input": "first_state"}
    plain, backward = (build(read_config(settings | {"reverse_source": each})) for each in (False, True))
    source, target = pairs(plain.config)
    reversed_rows = [row[:length].flip(0) for row, length in zip(source, LENGTHS.tolist(), strict=True)]
    reversed_source = nn.utils.rnn.pad_sequence(reversed_rows, batch_first=True)
    expected = plain(reversed_source, target, source_lengths=LENGTHS)
    torch.testing.assert_close(backward(source, target, source_lengths=LENGTHS), expected, **EXACT)


@cells
def test_a_summary_in_every_step_equals_modules_of_torch(cell):
    """Cho et al. 2014, appendix A: c = tanh(V h), h'_0 = tanh(V' c), maxout of O_h h + O_y y + O_c c."""
    config = read_config(BASE | {"kind": "recurrent", "cell": cell, "layers": 2})
    model = build(config)
    source, target = pairs(config)
    decoder = model.decoder
    packed = pack_padded_sequence(embed(model, source), LENGTHS, batch_first=True, enforce_sorted=False)
    _, last = torch_stack(cell, model.encoder.layers)(packed)
    h = last[0] if cell == "lstm" else last
    c = torch.tanh(decoder.summary_proj(h[-1]))
    first = torch.tanh(decoder.first_state.proj(c)).view(3, 2, -1, config.hidden)  # (rows, layers, h and c, hidden)
    parts = tuple(part.transpose(0, 1).contiguous() for part in first.unbind(2))
    y, every = embed(model, target), c[:, None].expand(-1, target.shape[1], -1)
    output, _ = torch_stack(cell, decoder.layers)(torch.cat((y, every), dim=-1), parts if cell == "lstm" else parts[0])
    pieces = decoder.readout.proj(torch.cat((output, y, every), dim=-1))
    features = torch.maximum(pieces[..., 0::2], pieces[..., 1::2])
    logits = features @ model.embed_tokens.weight.T + model.lm_head_bias
    torch.testing.assert_close(model(source, target, source_lengths=LENGTHS), logits, **EXACT)


@pytest.mark.parametrize("kind", ["additive", "dot", "general", "concat"])
def test_scores_equal_their_formulas(kind):
    torch.manual_seed(0)
    attention = RecurrentAttentionConfig(kind=kind).build(6, 6).double()
    query, memory = torch.randn(2, 3, 6, dtype=torch.float64), torch.randn(2, 4, 6, dtype=torch.float64)

    def score(s, h):
        if kind == "dot":
            return s @ h
        if kind == "general":
            return s @ attention.key_proj.weight @ h
        w, u, v = attention.query_proj.weight, attention.key_proj.weight, attention.score_proj.weight[0]
        if kind == "concat":
            return v @ torch.tanh(torch.cat((w, u), dim=1) @ torch.cat((s, h)))
        return v @ torch.tanh(w @ s + u @ h)

    memory_of = attention.memory(memory)
    padding = torch.tensor([[[False] * 4], [[False, False, True, True]]])
    source = Source(memory_of.get("key", memory), memory_of["value"], padding)
    context, weights = attention(query, source)
    for row, length in enumerate([4, 2]):
        for number, s in enumerate(query[row]):
            expected = torch.stack([score(s, h) for h in memory[row, :length]]).softmax(dim=0)
            torch.testing.assert_close(weights[row, number, :length], expected, **EXACT)
            assert (weights[row, number, length:] == 0).all()
            torch.testing.assert_close(context[row, number], expected @ memory[row, :length], **EXACT)


def bidirectional(cell, model, source):
    """The encoder's outputs and its last states, from PyTorch's module."""
    layer = model.encoder.layers[0]
    kind = nn.LSTM if cell == "lstm" else nn.GRU
    module = kind(model.config.width, layer.forward_layer.width, bidirectional=True, batch_first=True).double()
    back = {f"{name}_reverse": tensor for name, tensor in layer.backward_layer.state_dict().items()}
    module.load_state_dict({**layer.forward_layer.state_dict(), **back})
    return module(embed(model, source))


def torch_cell(cell, layer):
    kind = nn.LSTMCell if cell == "lstm" else nn.GRUCell
    module = kind(layer.weight_ih_l0.shape[1], layer.width).double()
    module.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in layer.state_dict().items()})
    return module


@cells
def test_bahdanau_equals_cells_of_torch(cell):
    config = read_config(ATTENTION | {"cell": cell})
    model = build(config)
    source, target = pairs(config)
    decoder, attention, step = model.decoder, model.decoder.attention, torch_cell(cell, model.decoder.bottom.layer)
    memory, last = bidirectional(cell, model, source)
    backward = (last[0] if cell == "lstm" else last)[1]
    first = torch.tanh(decoder.first_state.proj(backward))
    state = first.chunk(2, dim=-1) if cell == "lstm" else first
    weights, expected = [], []
    for y in embed(model, target).unbind(1):
        s = state[0] if cell == "lstm" else state
        hidden = torch.tanh(attention.query_proj(s)[:, None] + attention.key_proj(memory))
        weight = attention.score_proj(hidden)[..., 0].softmax(dim=-1)
        context = torch.einsum("bk,bkw->bw", weight, memory)
        state = step(torch.cat((y, context), dim=-1), state)
        s = state[0] if cell == "lstm" else state
        features = torch.tanh(decoder.readout.proj(torch.cat((s, y, context), dim=-1)))
        expected.append(features @ model.embed_tokens.weight.T + model.lm_head_bias)
        weights.append(weight)
    seen = []
    logits = model(source, target, attention_hook=lambda module, weights: seen.append((module, weights)))
    torch.testing.assert_close(logits, torch.stack(expected, dim=1), **EXACT)
    assert [module for module, _ in seen] == [attention]
    torch.testing.assert_close(seen[0][1], torch.stack(weights, dim=1)[:, None], **EXACT)


@cells
@pytest.mark.parametrize("feeding", [True, False])
def test_luong_equals_cells_of_torch(cell, feeding):
    settings = {"cell": cell, "attention": {"kind": "general"}, "decoder": LUONG | {"input_feeding": feeding}}
    config = read_config(ATTENTION | settings)
    model = build(config)
    source, target = pairs(config)
    decoder, step = model.decoder, torch_cell(cell, model.decoder.layers[0])
    memory, last = bidirectional(cell, model, source)
    both = [torch.cat(tuple(each), dim=-1) for each in (last if cell == "lstm" else (last,))]
    state = tuple(both) if cell == "lstm" else both[0]
    fed, expected = torch.zeros(3, config.hidden, dtype=torch.float64), []
    for y in embed(model, target).unbind(1):
        state = step(torch.cat((y, fed), dim=-1) if feeding else y, state)
        h = state[0] if cell == "lstm" else state
        weight = torch.einsum("bw,wv,bkv->bk", h, decoder.attention.key_proj.weight, memory).softmax(dim=-1)
        context = torch.einsum("bk,bkw->bw", weight, memory)
        fed = torch.tanh(decoder.readout.proj(torch.cat((context, h), dim=-1)))
        expected.append(decoder.output_proj(fed) @ model.embed_tokens.weight.T + model.lm_head_bias)
    torch.testing.assert_close(model(source, target), torch.stack(expected, dim=1), **EXACT)


def test_the_hook_receives_the_weights_of_every_hypothesis():
    model = build(read_config(ATTENTION))
    source, target = pairs(model.config, rows=2)
    state = model.start(source, 4, torch.tensor([5, 3]))
    state.reorder_beams(torch.tensor([0, 0, 1, 1]))
    seen = []
    model.step(target[:, :3].repeat_interleave(2, dim=0), state, attention_hook=lambda _, weights: seen.append(weights))
    assert seen[0].shape == (4, 1, 3, 5)
    torch.testing.assert_close(seen[0].sum(dim=-1), torch.ones(4, 1, 3, dtype=torch.float64))
    assert (seen[0][2:, ..., 3:] == 0).all()
    torch.testing.assert_close(seen[0][0], seen[0][1], **EXACT)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"encoder_hidden": 12, "attention": {"kind": "dot"}}, "encoder_hidden"),
        ({"encoder_hidden": 12, "decoder": LUONG}, "encoder_hidden"),
        ({"hidden": 7}, "hidden"),
        ({"encoder_hidden": 7}, "encoder_hidden"),
    ],
)
def test_widths_that_do_not_fit_are_refused(settings, key):
    with pytest.raises(UserError, match=f"^{key}: "):
        read_config(ATTENTION | settings)
