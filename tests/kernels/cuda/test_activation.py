"""Activation functions and their gradients equal PyTorch's. The kernels run in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

from functools import partial

import torch
from torch.nn import functional

from regard.kernels.cuda.activation import activation_dropout
from regard.kernels.params import Dropout

pytestmark = pytest.mark.start_early(13)

SMOOTH = {
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}


def test_relu_equals_pytorch() -> None:
    torch.manual_seed(0)
    x = torch.randn(7, 300, requires_grad=True)
    factor = torch.randn(7, 300)
    expected = torch.relu(x)
    (expected * factor).sum().backward()
    assert x.grad is not None
    grad, x.grad = x.grad, None
    actual = activation_dropout(x, "relu", None)
    (actual * factor).sum().backward()
    assert torch.equal(actual, expected)
    assert torch.equal(x.grad, grad)


def test_relu_with_dropout() -> None:
    x = torch.linspace(-1, 1, 4000).requires_grad_()
    y = activation_dropout(x[None], "relu", Dropout(0.25, torch.tensor([5]), 3))[0]
    y.sum().backward()
    assert x.grad is not None
    positive = x.detach() > 0
    kept = y.detach() > 0
    assert float(kept[positive].float().mean()) == pytest.approx(0.75, abs=0.03)
    assert not bool(kept[~positive].any())
    assert torch.allclose(y[kept], x.detach()[kept] / 0.75)
    assert torch.allclose(x.grad, kept / 0.75)


@pytest.mark.parametrize("activation", SMOOTH)
def test_smooth_activations_equal_pytorch(activation: str) -> None:
    torch.manual_seed(0)
    x = (3 * torch.randn(7, 300)).requires_grad_()
    factor = torch.randn(7, 300)
    expected = SMOOTH[activation](x)
    (expected * factor).sum().backward()
    assert x.grad is not None
    grad, x.grad = x.grad, None
    actual = activation_dropout(x, activation, None)
    (actual * factor).sum().backward()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(x.grad, grad)


@pytest.mark.parametrize("activation", SMOOTH)
def test_smooth_activations_with_dropout(activation: str) -> None:
    x = torch.linspace(0.1, 1, 4000).requires_grad_()
    y = activation_dropout(x, activation, Dropout(0.25, torch.tensor([5]), 3))
    y.sum().backward()
    assert x.grad is not None
    kept = y.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.03)
    grad, x.grad = x.grad, None
    expected = SMOOTH[activation](x) * kept / 0.75
    expected.sum().backward()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(grad, x.grad)
