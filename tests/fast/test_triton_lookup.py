"""What flows back to words is what PyTorch adds up, whatever stands where. It runs here in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional


def slopes(
    ids: torch.Tensor, width: int, size: int, *, fast: bool, tied: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    from regard.fast.triton_lookup import lookup

    torch.manual_seed(width)
    weight = torch.randn(size, width, dtype=torch.float64).float().requires_grad_()
    factor = torch.randn(*ids.shape, width)
    found, scoring = lookup(ids, weight) if fast else (functional.embedding(ids, weight), weight)
    total = (found * factor).sum()
    if tied:
        total = total + functional.linear(factor, scoring).square().sum()
    total.backward()
    assert weight.grad is not None
    return found.detach(), weight.grad


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("width", [5, 8, 1300])
@pytest.mark.parametrize(
    "ids",
    [
        torch.zeros(1, 1, dtype=torch.long),
        torch.full((5, 40), 3),  # one word in many stretches
        torch.arange(7).repeat(3, 5),
        torch.tensor([[0] * 32 + [1] * 32 + [2] * 31 + [4] * 65]),  # ends on and beside the ends of stretches
        torch.tensor([[6] * 33 + [5] * 64 + [0]]),
    ],
    ids=["one", "one word", "some", "at the ends", "over the ends"],
)
def test_gradients_are_those_of_pytorch(ids: torch.Tensor, width: int, tied: bool) -> None:
    wanted, found = (slopes(ids, width, 7, fast=fast, tied=tied) for fast in (False, True))
    assert torch.equal(wanted[0], found[0])
    assert torch.allclose(wanted[1], found[1], rtol=1e-5, atol=1e-4)


def test_a_table_that_only_scores_has_its_gradient() -> None:
    from regard.fast.triton_lookup import lookup

    weight = torch.randn(7, 3, requires_grad=True)
    _, scoring = lookup(torch.tensor([[1, 2]]), weight)
    (scoring * 2).sum().backward()
    assert weight.grad is not None
    assert bool((weight.grad == 2).all())


@given(st.lists(st.integers(0, 4), min_size=1, max_size=150))
def test_whatever_the_words(words: list[int]) -> None:
    ids = torch.tensor([words])
    wanted, found = (slopes(ids, 3, 5, fast=fast)[1] for fast in (False, True))
    assert torch.allclose(wanted, found, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("factor", [1.0, 3.0])
@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6)])
def test_a_code_of_places_is_added(shape: tuple[int, ...], factor: float) -> None:
    from regard.fast.triton_lookup import place

    torch.manual_seed(1)
    x, code, slope = (torch.randn(size) for size in ((2, 5, 6), shape, (2, 5, 6)))
    x.requires_grad_()
    code.requires_grad_()
    (factor * x + code).backward(slope)
    wanted = [x.grad, code.grad]
    x.grad = code.grad = None
    found = place(x, code, factor, None)
    torch.testing.assert_close(found, factor * x + code)
    found.backward(slope)
    torch.testing.assert_close([x.grad, code.grad], wanted)


def test_what_is_dropped_behind_a_code_gets_no_gradient() -> None:
    from regard.fast.triton_chance import Chance
    from regard.fast.triton_lookup import place

    torch.manual_seed(1)
    x, code = torch.randn(4, 50, 20, requires_grad=True), torch.randn(50, 20, requires_grad=True)
    found = place(x, code, 3.0, Chance(0.25, torch.tensor([5]), 3))
    kept = found.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(found, (3 * x + code) * kept / 0.75)
    found.sum().backward()
    torch.testing.assert_close(x.grad, 3 * kept / 0.75)
    torch.testing.assert_close(code.grad, kept.sum(0) / 0.75)
