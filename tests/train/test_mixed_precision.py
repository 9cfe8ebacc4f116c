"""Casting all weights at once gives the same gradients as casting each by itself, over several passes."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from regard.train.mixed_precision import MixedPrecisionModel, resolve_precision


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3), nn.Linear(3, 2))


def cast_one_by_one(net: nn.Module, x: torch.Tensor) -> None:
    weights = {name: parameter.to(torch.bfloat16) for name, parameter in net.named_parameters()}
    functional_call(net, weights, (x,)).float().square().sum().backward()


def cast_all(mixed_precision: MixedPrecisionModel, x: torch.Tensor, *, first: bool = False) -> None:
    mixed_precision.refresh()
    mixed_precision(x).float().square().sum().backward()
    mixed_precision.accumulate_grads(first=first)


def grads(net: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_gradients_are_accumulated_in_float32() -> None:
    net, other = model(), model()
    mixed_precision = MixedPrecisionModel(other)
    for number in range(3):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(number)).bfloat16()
        cast_one_by_one(net, x)
        cast_all(mixed_precision, x)
    assert all(grad.dtype == torch.float32 for grad in grads(other))
    for one, two in zip(grads(net), grads(other), strict=True):
        assert torch.equal(one, two)


def test_zero_grad_in_place_or_to_none_starts_a_new_sum() -> None:
    x = torch.randn(5, 6).bfloat16()
    net = model()
    mixed_precision = MixedPrecisionModel(net)
    cast_all(mixed_precision, x)
    first = grads(net)
    for to_none in (False, True):
        net.zero_grad(set_to_none=to_none)
        cast_all(mixed_precision, x)
        assert all(torch.equal(one, two) for one, two in zip(first, grads(net), strict=True))


def test_unused_parameter_keeps_its_gradient() -> None:
    net = model()
    mixed_precision = MixedPrecisionModel(net)
    x = torch.randn(5, 6).bfloat16()
    cast_all(mixed_precision, x)
    before = grads(net)
    mixed_precision.refresh()
    weights = mixed_precision.weights
    (weights["0.weight"].float().sum()).backward()
    mixed_precision.accumulate_grads()
    after = grads(net)
    assert torch.equal(after[0], before[0] + 1)
    assert all(torch.equal(one, two) for one, two in zip(before[1:], after[1:], strict=True))


def test_refresh_copies_updated_weights() -> None:
    net = model()
    mixed_precision = MixedPrecisionModel(net)
    with torch.no_grad():
        net[0].weight.fill_(2.0)
    mixed_precision.refresh()
    assert bool((mixed_precision.weights["0.weight"] == 2).all())


def test_first_pass_replaces_gradients() -> None:
    x = torch.randn(5, 6).bfloat16()
    net = model()
    mixed_precision = MixedPrecisionModel(net)
    cast_all(mixed_precision, x, first=True)
    once = grads(net)
    cast_all(mixed_precision, x)
    assert all(torch.equal(one + one, two) for one, two in zip(once, grads(net), strict=True))
    cast_all(mixed_precision, x, first=True)
    assert all(torch.equal(one, two) for one, two in zip(once, grads(net), strict=True))
    mixed_precision.refresh()
    mixed_precision.weights["0.weight"].float().sum().backward()
    mixed_precision.accumulate_grads(first=True)
    assert bool((grads(net)[0] == 1).all())
    assert all(bool((grad == 0).all()) for grad in grads(net)[1:])


def test_failed_pass_leaves_no_gradient() -> None:
    x = torch.randn(5, 6).bfloat16()
    net = model()
    mixed_precision = MixedPrecisionModel(net)
    cast_all(mixed_precision, x, first=True)
    expected = grads(net)
    mixed_precision.refresh()
    mixed_precision(x).float().sum().backward()
    cast_all(mixed_precision, x, first=True)
    assert all(torch.equal(one, two) for one, two in zip(expected, grads(net), strict=True))


def test_frozen_parameters_are_cast_too() -> None:
    net = model()
    net[0].weight.requires_grad_(False)
    mixed_precision = MixedPrecisionModel(net)
    cast_all(mixed_precision, torch.randn(5, 6).bfloat16())
    assert net[0].weight.grad is None
    assert len(grads(net)) == len(list(net.parameters())) - 1


def test_adjacent_copies_are_consecutive_in_memory() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 8))
    adjacent = [net[2].weight, net[0].weight, torch.zeros(2)]  # the last is not one of its parameters
    mixed_precision = MixedPrecisionModel(net, adjacent=adjacent)
    one, two = mixed_precision.weights["2.weight"], mixed_precision.weights["0.weight"]
    assert two.data_ptr() == one.data_ptr() + one.nbytes
    for name, parameter in net.named_parameters():
        copy = mixed_precision.weights[name]
        assert torch.equal(copy, parameter.to(torch.bfloat16))
        assert copy.data_ptr() % 16 == 0
        assert copy.is_leaf
        assert copy.requires_grad


@pytest.mark.parametrize(
    ("precision", "device", "supported", "expected"),
    [
        ("auto", "cpu", True, "float32"),
        ("auto", "cuda", True, "bfloat16"),
        ("auto", "cuda", False, "float32"),
        ("bfloat16", "cpu", False, "bfloat16"),
        ("float32", "cuda", True, "float32"),
    ],
)
def test_only_auto_depends_on_the_device(
    precision: str, device: str, supported: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: supported)
    assert resolve_precision(precision, device) == expected
