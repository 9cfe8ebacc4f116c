"""Stacks whose first layers have a feed-forward of their own, in every fast form: the same numbers, or a reason."""

import pytest
import torch
from torch import nn

from regard.attention import HeadsConfig
from regard.fast import swift as on_cpu
from regard.fast import swift_gpu as on_gpu
from regard.fast.swift_training import for_training
from regard.fast.swift_training import why_not as why_not_train
from regard.fast.swift_ways import ByParts, InOne
from regard.model import EncoderDecoderConfig, LanguageModelConfig, StackConfig, TokensConfig
from regard.model.feed_forward import FeedForwardConfig
from tests.model.small_models import with_experts, with_first

SIZE = 80
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
TOKENS = TokensConfig(padding=0, start=1, end=2)
PLAIN = StackConfig(layers=3, attention=HeadsConfig(heads=2), feed_forward=FeedForwardConfig(hidden=24), dropout=0.0)
KINDS = {
    "narrower": with_first(PLAIN, layers=2, hidden=9),
    "wider": with_first(PLAIN, hidden=40),
    "bent otherwise": with_first(PLAIN, activation="gelu"),
    "gated": with_first(PLAIN, activation="swiglu", bias=False),
    "alike": with_first(PLAIN),
}
EVERY = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def moved(config):
    torch.manual_seed(0)
    model = config.build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + name.endswith("norm.weight"))
    return model


def translator(kind):
    return moved(EncoderDecoderConfig(vocabulary=SIZE, width=16, encoder=kind, decoder=kind, tokens=TOKENS))


def steps(model, sources, count=5):
    """Logits of some steps with the same tokens."""
    cache, tokens = model.begin(sources, count)
    made = []
    for number in range(count):
        logits, cache = model.step(tokens[:, None], cache)
        made.append(logits)
        tokens = torch.full_like(tokens, 5 + number)
    return torch.cat(made, dim=1)


@EVERY
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_steps_on_a_cpu_are_the_same(kind, precision):
    pytest.importorskip("numba")
    model = translator(kind)
    fast = on_cpu.Swift(model, precision)
    sources = [[7, 8, 9], [10, 11, 12, 13, 14], [15]]
    apart = (steps(fast, sources) - steps(model, sources)).abs()
    assert apart.max() < (1e-4 if precision == "float32" else 0.5)
    assert apart.mean() < (1e-5 if precision == "float32" else 0.1)


def test_layers_of_one_size_go_in_one_and_others_by_parts():
    pytest.importorskip("numba")
    ways = {name: type(on_cpu.Swift(translator(kind)).way) for name, kind in KINDS.items()}
    assert ways == {name: InOne if name == "alike" else ByParts for name in KINDS}


@EVERY
def test_training_on_a_cpu_has_the_same_gradients(kind):
    pytest.importorskip("numba")
    model = translator(kind)
    assert why_not_train(model.decoder) is None
    source, target = torch.randint(3, SIZE, (3, 6)), torch.randint(3, SIZE, (3, 5))
    found = []
    for each in (model, for_training(model)):
        made = each(source, target)
        loss = nn.functional.cross_entropy(made.flatten(0, 1), target.flatten())
        found.append(torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@EVERY
def test_steps_with_the_kernels_of_a_gpu_are_the_same(kind, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr("regard.fast.triton_switch.INTERPRETED", True)
    model = translator(kind)
    sources = [[7, 8, 9], [10, 11]]
    torch.testing.assert_close(steps(on_gpu.SwiftGpu(model), sources, 3), steps(model, sources, 3), **CLOSE)


def test_experts_behind_the_first_layers_are_seen():
    model = moved(LanguageModelConfig(vocabulary=SIZE, width=16, decoder=with_first(with_experts(PLAIN))))
    assert on_cpu.why_not(model) in (
        "its feed-forward is a Experts",
        "numba is not installed (pip install 'regard[fast]')",
    )
    assert on_cpu.swift(model) is model
