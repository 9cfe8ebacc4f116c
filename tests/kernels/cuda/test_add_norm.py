"""The gradients of the residual sum and its norm equal PyTorch's. The kernels run in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from torch.nn import functional

from regard.kernels.cuda.add_norm import dropout_add_norm
from regard.kernels.params import Dropout

pytestmark = pytest.mark.start_early(13)


@pytest.mark.parametrize("centered", [True, False])
def test_gradients_of_residual_and_norm_are_added(centered: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, 12, requires_grad=True), torch.randn(12, requires_grad=True)
    residual_factor, norm_factor = torch.randn(2, 3, 5, 12)
    expected = functional.layer_norm(x, (12,), weight) if centered else functional.rms_norm(x, (12,), weight, eps=1e-5)
    (x * residual_factor + expected * norm_factor).sum().backward()
    grads = [x.grad, weight.grad]
    x.grad = weight.grad = None
    residual, normed = dropout_add_norm(x, None, weight, None, 1e-5, pre_norm=True, centered=centered, dropout=None)
    torch.testing.assert_close(residual, x)
    torch.testing.assert_close(normed, expected)
    (residual * residual_factor + normed * norm_factor).sum().backward()
    torch.testing.assert_close([x.grad, weight.grad], grads)


def test_dropout_has_its_probability_and_its_gradient() -> None:
    torch.manual_seed(0)
    residual, output = torch.zeros(60, 64), torch.ones(60, 64, requires_grad=True)
    seed, weight = torch.tensor([7]), torch.ones(64)

    def total(offset: int) -> torch.Tensor:
        dropout = Dropout(0.3, seed, offset)
        return dropout_add_norm(residual, output, weight, None, 1e-5, pre_norm=True, centered=True, dropout=dropout)[0]

    first = total(1)
    kept = first.detach() != 0
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.03)
    assert torch.allclose(first[kept], torch.tensor(1 / 0.7))
    first.sum().backward()
    assert output.grad is not None
    assert torch.allclose(output.grad, kept / 0.7)
    assert torch.equal(total(1) != 0, kept)
    assert not torch.equal(total(2) != 0, kept)
