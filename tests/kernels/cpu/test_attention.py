"""Attention with dropout: its gradients equal finite differences, and its dropout has the right probability."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

from regard.kernels.cpu.attention import cross_attention, self_attention
from regard.kernels.cpu.linear import UnpaddedLayout
from regard.kernels.params import Dropout, HeadShape

pytestmark = pytest.mark.start_early(12)


def check_gradient(value: Any, x: Tensor) -> None:
    """The gradient equals the finite difference in a random direction."""
    x.grad = None
    value(x).backward()
    assert x.grad is not None
    direction, step = torch.randn_like(x), 1e-2
    with torch.no_grad():
        measured = (value(x + step * direction) - value(x - step * direction)) / (2 * step)
    assert float((x.grad * direction).sum()) == pytest.approx(float(measured), rel=2e-2, abs=2e-2)


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_gradient_of_self_attention_with_dropout(causal: bool, kv_heads: int) -> None:
    torch.manual_seed(0)
    layout = UnpaddedLayout(3, 7, torch.tensor([4, 1, 7]))
    qkv = torch.randn(12, 8 + 2 * 4 * kv_heads, requires_grad=True)
    settings, shape, factor = Dropout(0.4, 3, 5), HeadShape(2, kv_heads, 4, causal), torch.randn(12, 8)
    check_gradient(lambda x: (self_attention(x, layout, shape, settings) * factor).sum(), qkv)
    without_dropout = self_attention(qkv, layout, shape, None)
    assert not torch.allclose(self_attention(qkv, layout, shape, settings), without_dropout)


def test_gradient_of_cross_attention_with_dropout() -> None:
    torch.manual_seed(0)
    layout = UnpaddedLayout(3, 7, torch.tensor([4, 1, 7]))
    kv_layout = UnpaddedLayout(3, 6, torch.tensor([6, 2, 1]))
    query, kv = torch.randn(12, 8, requires_grad=True), torch.randn(9, 16, requires_grad=True)
    factor, settings = torch.randn(12, 8), (layout, kv_layout, HeadShape(2, 2, 4, False), Dropout(0.4, 3, 5))
    check_gradient(lambda x: (cross_attention(x, kv, *settings) * factor).sum(), query)
    check_gradient(lambda x: (cross_attention(query, x, *settings) * factor).sum(), kv)


def test_attention_dropout_has_its_probability() -> None:
    layout, head_dim = UnpaddedLayout(40, 20, None), 4
    qkv = torch.cat((torch.zeros(800, 2 * head_dim), torch.ones(800, head_dim)), dim=1)  # all weights are equal
    out = self_attention(qkv, layout, HeadShape(1, 1, head_dim, False), Dropout(0.25, 3, 5))[:, 0]
    assert float(out.mean()) == pytest.approx(1.0, abs=0.01)
    assert float(out.var()) == pytest.approx(0.25 / 0.75 / 20, rel=0.15)
