"""The gradient of attention with dropout equals finite differences. The kernels run in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from regard.kernels.cuda.attention import self_attention
from regard.kernels.params import Dropout, HeadShape

pytestmark = pytest.mark.start_early(13)


def test_gradient_with_dropout_equals_finite_differences() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(2, 4, 3 * 8, requires_grad=True)
    dropout, shape = Dropout(0.4, torch.tensor([3]), 5), HeadShape(2, 2, 4, causal=True)

    def value(x: Tensor) -> Tensor:
        return (self_attention(x, None, shape, dropout) * factor).sum()

    factor = torch.randn(2, 4, 8)
    value(qkv).backward()
    assert qkv.grad is not None
    direction = torch.randn_like(qkv)
    step = 1e-2
    with torch.no_grad():
        measured = (value(qkv + step * direction) - value(qkv - step * direction)) / (2 * step)
    assert float((qkv.grad * direction).sum()) == pytest.approx(float(measured), rel=2e-2)
    without_dropout = self_attention(qkv, None, shape, None)
    assert not torch.allclose(self_attention(qkv, None, shape, dropout), without_dropout)
