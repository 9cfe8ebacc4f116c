"""The gradient of an embedding equals PyTorch's for any tokens. The kernels run in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from regard.kernels.cuda.embedding import add_positions, embedding
from regard.kernels.params import Dropout

pytestmark = pytest.mark.start_early(13)


def embed(
    ids: torch.Tensor, width: int, vocab_size: int, *, fused: bool, tied: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The embeddings and the gradient of the weight, including that of a tied output projection."""
    torch.manual_seed(width)
    weight = torch.randn(vocab_size, width, dtype=torch.float64).float().requires_grad_()
    factor = torch.randn(*ids.shape, width)
    embedded, lm_head = embedding(ids, weight) if fused else (functional.embedding(ids, weight), weight)
    total = (embedded * factor).sum()
    if tied:
        total = total + functional.linear(factor, lm_head).square().sum()
    total.backward()
    assert weight.grad is not None
    return embedded.detach(), weight.grad


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("width", [5, 8, 1300])
@pytest.mark.parametrize(
    "ids",
    [
        torch.zeros(1, 1, dtype=torch.long),
        torch.full((5, 40), 3),  # one token in many chunks
        torch.arange(7).repeat(3, 5),
        torch.tensor([[0] * 32 + [1] * 32 + [2] * 31 + [4] * 65]),  # ends at and next to the ends of chunks
        torch.tensor([[6] * 33 + [5] * 64 + [0]]),
    ],
    ids=["one", "one token", "some", "at chunk ends", "across chunk ends"],
)
def test_gradients_equal_pytorch(ids: torch.Tensor, width: int, tied: bool) -> None:
    expected, actual = (embed(ids, width, 7, fused=fused, tied=tied) for fused in (False, True))
    assert torch.equal(expected[0], actual[0])
    assert torch.allclose(expected[1], actual[1], rtol=1e-5, atol=1e-4)


def test_gradient_of_the_output_projection_alone() -> None:
    weight = torch.randn(7, 3, requires_grad=True)
    _, lm_head = embedding(torch.tensor([[1, 2]]), weight)
    (lm_head * 2).sum().backward()
    assert weight.grad is not None
    assert bool((weight.grad == 2).all())


@given(st.lists(st.integers(0, 4), min_size=1, max_size=150))
def test_gradients_equal_pytorch_for_any_tokens(tokens: list[int]) -> None:
    ids = torch.tensor([tokens])
    expected, actual = (embed(ids, 3, 5, fused=fused)[1] for fused in (False, True))
    assert torch.allclose(expected, actual, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("shape", [(5, 6), (2, 5, 6)])
def test_positions_are_added(shape: tuple[int, ...], scale: float) -> None:
    torch.manual_seed(1)
    x, encoding, grad = (torch.randn(size) for size in ((2, 5, 6), shape, (2, 5, 6)))
    x.requires_grad_()
    encoding.requires_grad_()
    (scale * x + encoding).backward(grad)
    expected = [x.grad, encoding.grad]
    x.grad = encoding.grad = None
    actual = add_positions(x, encoding, scale, None)
    torch.testing.assert_close(actual, scale * x + encoding)
    actual.backward(grad)
    torch.testing.assert_close([x.grad, encoding.grad], expected)


def test_dropout_after_positions() -> None:
    torch.manual_seed(1)
    x, encoding = torch.randn(4, 50, 20, requires_grad=True), torch.randn(50, 20, requires_grad=True)
    actual = add_positions(x, encoding, 3.0, Dropout(0.25, torch.tensor([5]), 3))
    kept = actual.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.03)
    torch.testing.assert_close(actual, (3 * x + encoding) * kept / 0.75)
    actual.sum().backward()
    torch.testing.assert_close(x.grad, 3 * kept / 0.75)
    torch.testing.assert_close(encoding.grad, kept.sum(0) / 0.75)
