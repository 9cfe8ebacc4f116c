"""Kernels for training that have no place in a test of whole models. They run here in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

from functools import partial

import torch
from torch.nn import functional


def test_the_positive_part_has_its_gradient() -> None:
    from regard.fast.triton_training import bend

    torch.manual_seed(0)
    x = torch.randn(7, 300, requires_grad=True)
    factor = torch.randn(7, 300)
    wanted = torch.relu(x)
    (wanted * factor).sum().backward()
    assert x.grad is not None
    slope, x.grad = x.grad, None
    found = bend(x, "relu", None)
    (found * factor).sum().backward()
    assert torch.equal(found, wanted)
    assert torch.equal(x.grad, slope)


def test_what_is_dropped_of_it_gets_no_gradient() -> None:
    from regard.fast.triton_training import Chance, bend

    x = torch.linspace(-1, 1, 4000).requires_grad_()
    bent = bend(x[None], "relu", Chance(0.25, torch.tensor([5]), 3))[0]
    bent.sum().backward()
    assert x.grad is not None
    positive = x.detach() > 0
    kept = bent.detach() > 0
    assert float(kept[positive].float().mean()) == pytest.approx(0.75, abs=0.03)
    assert not bool(kept[~positive].any())
    assert torch.allclose(bent[kept], x.detach()[kept] / 0.75)
    assert torch.allclose(x.grad, kept / 0.75)


BENT = {
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


@pytest.mark.parametrize("kind", BENT)
def test_every_bend_has_its_gradient(kind: str) -> None:
    from regard.fast.triton_training import bend

    torch.manual_seed(0)
    x = (3 * torch.randn(7, 300)).requires_grad_()
    factor = torch.randn(7, 300)
    wanted = BENT[kind](x)
    (wanted * factor).sum().backward()
    assert x.grad is not None
    slope, x.grad = x.grad, None
    found = bend(x, kind, None)
    (found * factor).sum().backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(x.grad, slope)


@pytest.mark.parametrize("kind", BENT)
def test_what_any_bend_drops_gets_no_gradient(kind: str) -> None:
    from regard.fast.triton_training import Chance, bend

    x = torch.linspace(0.1, 1, 4000).requires_grad_()
    bent = bend(x, kind, Chance(0.25, torch.tensor([5]), 3))
    bent.sum().backward()
    assert x.grad is not None
    kept = bent.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.03)
    slope, x.grad = x.grad, None
    wanted = BENT[kind](x) * kept / 0.75
    wanted.sum().backward()
    torch.testing.assert_close(bent, wanted)
    torch.testing.assert_close(slope, x.grad)


@pytest.mark.parametrize("shape", [(1, 3), (33, 130), (700, 5)])
def test_columns_are_summed(shape: tuple[int, int]) -> None:
    from regard.fast.triton_products import column_sums

    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(column_sums(x), x.sum(dim=0), atol=1e-4, rtol=1e-4)
    assert column_sums(x.half()).dtype == torch.float32
    rounded = column_sums(x.half(), torch.float16)
    assert torch.equal(rounded, column_sums(x.half()).half())


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 5, 40), (2, 300, 17)])
def test_what_several_programs_summed_is_added_up_and_rounded(shape: tuple[int, ...]) -> None:
    from regard.fast.triton_products import added

    sums = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(added(sums, torch.float32), sums.sum(dim=1), atol=1e-4, rtol=1e-4)
    assert torch.equal(added(sums, torch.float16), added(sums, torch.float32).half())


@pytest.mark.parametrize("biased", [(True, True, True), (False, False, False), (True, False, True)])
def test_several_products_of_one_input_are_each_as_if_alone(biased: tuple[bool, ...]) -> None:
    from regard.fast.triton_training import products

    torch.manual_seed(0)
    x = torch.randn(2, 5, 6).requires_grad_()
    weights = [torch.randn(wide, 6).requires_grad_() for wide in (6, 3, 2)]
    biases = [torch.randn(len(w)).requires_grad_() if has else None for w, has in zip(weights, biased, strict=True)]
    parts = list(zip(weights, biases, strict=True))
    leaves = [x, *weights, *(each for each in biases if each is not None)]
    factors = [torch.randn(2, 5, len(weight)) for weight in weights]
    mine, theirs = (
        (*made, *torch.autograd.grad(sum((m * f).sum() for m, f in zip(made, factors, strict=True)), leaves))
        for made in (products(x, *parts), [functional.linear(x, *part) for part in parts])
    )
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_a_product_has_its_gradients() -> None:
    from regard.fast.triton_training import product

    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*shape).requires_grad_() for shape in ((2, 5, 6), (4, 6), (4,)))
    factor = torch.randn(2, 5, 4)
    mine, theirs = (
        (made, *torch.autograd.grad((made * factor).sum(), (x, weight, bias)))
        for made in (product(x, weight, bias), functional.linear(x, weight, bias))
    )
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("beside", [True, False])
def test_weights_below_each_other_are_not_copied_where_they_lie_so(beside: bool) -> None:
    from regard.fast.triton_training import stacked

    torch.manual_seed(0)
    long = torch.randn(9, 4)
    parts = [part.detach() if beside else part.clone() for part in long.split([2, 4, 3])]
    for part in parts:
        part.requires_grad_()
    made = stacked(*parts)
    assert torch.equal(made, long)
    assert (made.data_ptr() == parts[0].data_ptr()) is beside
    factor = torch.randn(9, 4)
    (made * factor).sum().backward()
    assert [part.grad is not None for part in parts] == [True] * 3
    assert torch.equal(torch.cat([part.grad for part in parts if part.grad is not None]), factor)
    assert torch.equal(stacked(parts[1], parts[0]), torch.cat((parts[1], parts[0])))  # not in the order they lie in


@pytest.mark.parametrize("centred", [True, False])
def test_gradients_of_a_sum_and_of_its_norm_meet(centred: bool) -> None:
    from regard.fast.triton_training import join

    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, 12, requires_grad=True), torch.randn(12, requires_grad=True)
    one, two = torch.randn(2, 3, 5, 12)
    wanted = functional.layer_norm(x, (12,), weight) if centred else functional.rms_norm(x, (12,), weight, eps=1e-5)
    (x * one + wanted * two).sum().backward()
    slopes = [x.grad, weight.grad]
    x.grad = weight.grad = None
    same, normed = join(x, None, weight, None, 1e-5, before=True, centred=centred, chance=None)
    torch.testing.assert_close(same, x)
    torch.testing.assert_close(normed, wanted)
    (same * one + normed * two).sum().backward()
    torch.testing.assert_close([x.grad, weight.grad], slopes)
