"""Weights cast at once give the gradients of weights cast one by one, pass after pass."""

import torch
from torch import nn
from torch.func import functional_call

from regard.train.lowered import Lowered


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3), nn.Linear(3, 2))


def by_one(net: nn.Module, x: torch.Tensor) -> None:
    weights = {name: parameter.to(torch.bfloat16) for name, parameter in net.named_parameters()}
    functional_call(net, weights, (x,)).float().square().sum().backward()


def at_once(lowered: Lowered, x: torch.Tensor, *, first: bool = False) -> None:
    lowered.refresh()
    lowered(x).float().square().sum().backward()
    lowered.collect(first=first)


def slopes(net: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def test_gradients_of_several_passes_are_summed_in_float32() -> None:
    net, other = model(), model()
    lowered = Lowered(other)
    for number in range(3):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(number)).bfloat16()
        by_one(net, x)
        at_once(lowered, x)
    assert all(slope.dtype == torch.float32 for slope in slopes(other))
    for one, two in zip(slopes(net), slopes(other), strict=True):
        assert torch.equal(one, two)


def test_a_new_sum_begins_whether_gradients_are_emptied_or_taken_away() -> None:
    x = torch.randn(5, 6).bfloat16()
    net = model()
    lowered = Lowered(net)
    at_once(lowered, x)
    first = slopes(net)
    for to_none in (False, True):
        net.zero_grad(set_to_none=to_none)
        at_once(lowered, x)
        assert all(torch.equal(one, two) for one, two in zip(first, slopes(net), strict=True))


def test_what_a_pass_does_not_use_gets_nothing_new() -> None:
    net = model()
    lowered = Lowered(net)
    x = torch.randn(5, 6).bfloat16()
    at_once(lowered, x)
    before = slopes(net)
    lowered.refresh()
    weights = lowered.weights
    (weights["0.weight"].float().sum()).backward()
    lowered.collect()
    after = slopes(net)
    assert torch.equal(after[0], before[0] + 1)
    assert all(torch.equal(one, two) for one, two in zip(before[1:], after[1:], strict=True))


def test_moved_weights_are_seen_after_they_are_refreshed() -> None:
    net = model()
    lowered = Lowered(net)
    with torch.no_grad():
        net[0].weight.fill_(2.0)
    lowered.refresh()
    assert bool((lowered.weights["0.weight"] == 2).all())


def test_the_first_pass_of_a_sum_takes_the_place_of_what_was_there() -> None:
    x = torch.randn(5, 6).bfloat16()
    net = model()
    lowered = Lowered(net)
    at_once(lowered, x, first=True)
    once = slopes(net)
    at_once(lowered, x)
    assert all(torch.equal(one + one, two) for one, two in zip(once, slopes(net), strict=True))
    at_once(lowered, x, first=True)
    assert all(torch.equal(one, two) for one, two in zip(once, slopes(net), strict=True))
    lowered.refresh()
    lowered.weights["0.weight"].float().sum().backward()
    lowered.collect(first=True)
    assert bool((slopes(net)[0] == 1).all())
    assert all(bool((slope == 0).all()) for slope in slopes(net)[1:])


def test_a_pass_that_was_broken_off_leaves_nothing() -> None:
    x = torch.randn(5, 6).bfloat16()
    net = model()
    lowered = Lowered(net)
    at_once(lowered, x, first=True)
    wanted = slopes(net)
    lowered.refresh()
    lowered(x).float().sum().backward()
    at_once(lowered, x, first=True)
    assert all(torch.equal(one, two) for one, two in zip(wanted, slopes(net), strict=True))


def test_what_is_not_trained_is_cast_too() -> None:
    net = model()
    net[0].weight.requires_grad_(False)
    lowered = Lowered(net)
    at_once(lowered, torch.randn(5, 6).bfloat16())
    assert net[0].weight.grad is None
    assert len(slopes(net)) == len(list(net.parameters())) - 1


def test_copies_lie_behind_each_other_in_the_order_that_is_asked_for() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 8))
    first = [net[2].weight, net[0].weight, torch.zeros(2)]  # the last is not a parameter of it
    lowered = Lowered(net, first=first)
    one, two = lowered.weights["2.weight"], lowered.weights["0.weight"]
    assert two.data_ptr() == one.data_ptr() + one.nbytes
    for name, parameter in net.named_parameters():
        copy = lowered.weights[name]
        assert torch.equal(copy, parameter.to(torch.bfloat16))
        assert copy.data_ptr() % 16 == 0
        assert copy.is_leaf
        assert copy.requires_grad
