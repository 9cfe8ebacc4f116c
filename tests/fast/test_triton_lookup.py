"""What flows back to words is what PyTorch adds up, whatever stands where. It runs here in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional


def slopes(ids: torch.Tensor, width: int, size: int, *, fast: bool) -> tuple[torch.Tensor, torch.Tensor]:
    from regard.fast.triton_lookup import lookup

    torch.manual_seed(width)
    weight = torch.randn(size, width, dtype=torch.float64).float().requires_grad_()
    factor = torch.randn(*ids.shape, width)
    found = lookup(ids, weight) if fast else functional.embedding(ids, weight)
    (found * factor).sum().backward()
    assert weight.grad is not None
    return found.detach(), weight.grad


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
def test_gradients_are_those_of_pytorch(ids: torch.Tensor, width: int) -> None:
    wanted, found = (slopes(ids, width, 7, fast=fast) for fast in (False, True))
    assert torch.equal(wanted[0], found[0])
    assert torch.allclose(wanted[1], found[1], rtol=1e-5, atol=1e-4)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=150))
def test_whatever_the_words(words: list[int]) -> None:
    ids = torch.tensor([words])
    wanted, found = (slopes(ids, 3, 5, fast=fast)[1] for fast in (False, True))
    assert torch.allclose(wanted, found, rtol=1e-5, atol=1e-4)
