"""Convolutional models: weight normalization, receptive fields, attention and what training needs to succeed."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from regard.config import ConfigError
from regard.errors import UserError
from regard.model.before.convolutional.convs2s import ConvolutionalAttention, ConvolutionalConfig
from regard.model.before.convolutional.language_model import ConvolutionalLMConfig
from regard.model.before.convolutional.layers import Convolution, GatedConvolution, WeightNormLinear, scale_gradient
from tests.model.before.samples import build, sample
from tests.model.small_models import EXACT, ids


def convolutional(**settings) -> ConvolutionalConfig:
    return sample("convolutional", **{"width": 8, "max_length": 40, **settings})


def fit(model, source, target, steps, lr=5e-3):
    """Train on these pairs, and give the last loss and the share of tokens that are predicted."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        logits = model(source, target[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    right = model.eval()(source, target[:, :-1]).argmax(-1) == target[:, 1:]
    return float(loss.detach()), float(right.double().mean())


def seen(output, embeddings):
    """The tokens whose embeddings have an influence on a vector.  embeddings: # (1, tokens, width)"""
    (gradient,) = torch.autograd.grad(output.sum(), embeddings)
    return gradient[0].abs().sum(-1).nonzero().flatten().tolist()


def test_weight_norm_equals_pytorch():
    """g and v have PyTorch's shapes, in a linear layer and in a convolution."""
    torch.manual_seed(0)
    ours, theirs = WeightNormLinear(5, 7).double(), weight_norm(nn.Linear(5, 7).double())
    theirs.load_state_dict(as_parametrization(ours))
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x), **EXACT)

    ours, theirs = GatedConvolution(5, 7, 3, 2).double(), weight_norm(nn.Conv1d(5, 14, 3, dilation=2).double())
    theirs.load_state_dict(as_parametrization(ours))
    x = torch.randn(2, 9, 5, dtype=torch.float64)
    torch.testing.assert_close(ours(x), nn.functional.glu(theirs(x.mT), dim=1).mT, **EXACT)


def as_parametrization(module):
    with torch.no_grad():
        module.weight_g.mul_(1.5)
        module.bias.normal_()
    state = module.state_dict()
    prefix = "parametrizations.weight.original"
    return {"bias": state["bias"], f"{prefix}0": state["weight_g"], f"{prefix}1": state["weight_v"]}


def test_weights_are_at_first_what_was_drawn():
    layer = WeightNormLinear(400, 300, dropout=0.2)
    assert float(layer.weight_v.detach().std()) == pytest.approx((0.8 / 400) ** 0.5, rel=0.02)
    torch.testing.assert_close(layer.weight_g, layer.weight_v.norm(dim=1, keepdim=True))
    gated = GatedConvolution(100, 100, 3, dropout=0.2)
    assert float(gated.weight_v.detach().std()) == pytest.approx((4 * 0.8 / 300) ** 0.5, rel=0.02)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_a_centered_convolution_equals_pytorch(kernel, dilation):
    torch.manual_seed(0)
    convolution = Convolution(3, 5, kernel, dilation).double()
    expected = nn.Conv1d(3, 5, kernel, dilation=dilation, padding="same").double()
    expected.load_state_dict(convolution.state_dict())
    x = torch.randn(2, 11, 3, dtype=torch.float64)
    torch.testing.assert_close(convolution.centered(x, None), expected(x.mT).mT, **EXACT)


def test_scaled_gradients_keep_the_values():
    x = torch.randn(3, requires_grad=True)
    y = scale_gradient(x, 0.25)
    assert torch.equal(x, y)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0.25] * 3


@pytest.mark.parametrize(("layers", "kernel"), [(1, 3), (3, 3), (2, 5), (4, 2), (2, 1)])
def test_receptive_fields(layers, kernel):
    """A target token sees 1 + L(k − 1) tokens, itself the last; a source token as many, itself in the middle."""
    config = convolutional(encoder_layers=layers, decoder_layers=layers, kernel=kernel)
    model = build(config)
    embedded = []
    hook = model.embed_tokens.register_forward_hook(lambda module, args, output: embedded.append(output))
    state = model.encode(ids(1, 31))
    logits = model.decode(ids(1, 31, seed=1), state)
    hook.remove()
    field = 1 + layers * (kernel - 1)
    assert config.decoder_receptive_field == config.encoder_receptive_field == field
    assert seen(logits[0, 20], embedded[1]) == list(range(21 - field, 21))
    before = layers * ((kernel - 1) // 2)
    encoded = model.encoder(embedded[0], None)
    assert seen(encoded[0, 15], embedded[0]) == list(range(15 - before, 15 - before + field))


def test_language_model_sees_its_receptive_field():
    config = sample("convolutional-lm", width=8, layers=4, kernel=3, dilations=[1, 2, 4])
    assert isinstance(config, ConvolutionalLMConfig)
    model = build(config)
    embedded = []
    model.embed_tokens.register_forward_hook(lambda module, args, output: embedded.append(output))
    logits = model(ids(1, 40))
    assert config.receptive_field == 1 + 2 * (1 + 2 + 4 + 1)
    assert seen(logits[0, 30], embedded[0]) == list(range(31 - config.receptive_field, 31))


def test_values_of_padding_do_not_matter():
    """Neither in outputs nor in gradients: what the padded positions contain never reaches a token."""
    model = build(convolutional())
    source, target = ids(3, 9), ids(3, 6, seed=1)
    lengths = torch.tensor([9, 4, 1])
    other = torch.where(torch.arange(9) < lengths[:, None], source, (source + 5) % 13)
    first, second = (model(each, target, source_lengths=lengths) for each in (source, other))
    assert torch.equal(first, second)


def test_attention_equals_the_formula():
    """Gehring et al. 2017, §3.3, with m the length without padding."""
    model = build(convolutional(width=6, hidden=10))
    source, lengths = ids(2, 5), torch.tensor([5, 3])
    state = model.encode(source, lengths)
    state.reorder(torch.tensor([0, 1]))
    attention = model.layers[0].cross_attn
    h, embedded = torch.randn(2, 4, 10, dtype=torch.float64), torch.randn(2, 4, 6, dtype=torch.float64)
    found = attention(h, embedded, state, None)
    for row, m in enumerate(lengths.tolist()):
        z, values = state.memory["key"][row, :m], state.memory["value"][row, :m]
        e = model.embed_tokens.weight[source[row, :m]] + model.source_embed_positions.weight[:m]
        torch.testing.assert_close(values, (z + e) * 0.5**0.5, **EXACT)
        d = (attention.q_proj(h[row]) + embedded[row]) * 0.5**0.5
        context = torch.softmax(d @ z.T, dim=-1) @ values * (m * (1 / m) ** 0.5)
        torch.testing.assert_close(found[row], (attention.o_proj(context) + h[row]) * 0.5**0.5, **EXACT)


def test_hook_receives_the_attention_weights_of_each_row():
    """One call per layer, whether rows have a source each or share one in a beam."""
    model = build(convolutional(decoder_layers=2))
    source, lengths, target = ids(2, 5), torch.tensor([5, 3]), ids(2, 4, seed=1)
    calls = []
    state = model.encode(source, lengths)
    model.decode(target, state, lambda module, weights: calls.append((module, weights)))
    assert [module for module, _ in calls] == [layer.cross_attn for layer in model.layers]
    assert all(isinstance(module, ConvolutionalAttention) for module, _ in calls)
    for _, weights in calls:
        assert weights.shape == (2, 1, 4, 5)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), **EXACT)
        assert (weights[1, ..., 3:] == 0).all()

    grouped = model.encode(source, lengths)
    grouped.reorder_beams(torch.tensor([0, 0, 1, 1]))
    in_beams = []
    model.decode(target[[0, 0, 1, 1]], grouped, lambda module, weights: in_beams.append(weights))
    for weights, (_, expected) in zip(in_beams, calls, strict=True):
        torch.testing.assert_close(weights, expected[[0, 0, 1, 1]], **EXACT)


def test_beams_continue_after_their_own_prefixes():
    """Rows that are reordered in the middle of decoding, in groups that share a source."""
    model = build(convolutional())
    source, lengths, target = ids(2, 5), torch.tensor([5, 3]), ids(4, 6, seed=1)
    state = model.start(source, 10, lengths)
    state.reorder_beams(torch.tensor([0, 0, 1, 1]))
    model.step(target[:, :3], state)
    origin = torch.tensor([1, 1, 3, 2])
    state.reorder_beams(origin)
    found = model.step(target[:, 3:], state)[0]
    whole = torch.cat((target[origin, :3], target[:, 3:]), dim=1)
    each = torch.tensor([0, 0, 1, 1])
    expected = model(source[each], whole, source_lengths=lengths[each])[:, 3:]
    torch.testing.assert_close(found, expected, **EXACT)


def test_encoder_gradients_are_divided_by_twice_the_attention_layers():
    model = build(convolutional(decoder_layers=3))
    state = model.encode(ids(1, 5))
    weight = model.encoder.out_proj.bias
    (found,) = torch.autograd.grad(state.memory["key"].sum(), weight)
    torch.testing.assert_close(found, torch.full_like(found, 5 / 6), **EXACT)


def test_swapped_parameters_are_used():
    model = build(convolutional())
    other = build(convolutional(), seed=1)
    args = ids(2, 5), ids(2, 4, seed=1)
    found = torch.func.functional_call(model, dict(other.named_parameters()), args)
    assert torch.equal(found, other(*args))


def test_more_tokens_than_positions_are_refused():
    model = build(convolutional(max_length=6))
    for source, target in ((7, 3), (3, 7)):
        with pytest.raises(UserError, match="positions for 6 tokens, but 7 are needed"):
            model(ids(1, source), ids(1, target))
    state = model.start(ids(1, 3), 10)
    model.step(ids(1, 6), state)
    with pytest.raises(UserError, match="positions for 6 tokens, but 7 are needed"):
        model.step(ids(1, 1), state)


def test_a_dilation_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"dilations\.0: found 0; expected greater than or equal to 1"):
        sample("convolutional-lm", dilations=[0])


def test_overfits_twenty_pairs():
    """The target is the source in reverse, so that only attention can find the tokens."""
    torch.manual_seed(0)
    source = torch.randint(3, 13, (20, 8))
    target = torch.cat((torch.ones(20, 1, dtype=torch.long), source.flip(1)), dim=1)
    model = convolutional(width=32, encoder_layers=2, decoder_layers=2, dropout=0.0).build()
    loss, accuracy = fit(model, source, target, 200)
    assert loss < 0.05
    assert accuracy == 1
