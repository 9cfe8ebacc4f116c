"""Linear layers with gradients, and layouts without padding."""

import pytest
import torch
from torch import nn

pytest.importorskip("numba")

from regard.kernels.cpu.linear import UnpaddedLayout, linear

pytestmark = pytest.mark.start_early(12)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_equals_pytorch(bias: bool) -> None:
    torch.manual_seed(0)
    x, module = torch.randn(37, 16, requires_grad=True), nn.Linear(16, 24, bias=bias)
    leaves = [x, *module.parameters()]
    factor = torch.randn(37, 24)
    expected = torch.autograd.grad((module(x) * factor).sum(), leaves)
    actual = torch.autograd.grad((linear(x, module.weight, module.bias) * factor).sum(), leaves)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_unpadded_tensors_have_few_sizes() -> None:
    torch.manual_seed(0)
    counts = []
    for _ in range(200):
        layout = UnpaddedLayout(60, 30, torch.randint(20, 31, (60,)))
        counts.append(len(layout.unpad(torch.ones(60, 30, 1))))
        assert 0 <= counts[-1] - layout.count < 64
    assert len(set(counts)) <= 4
    full = UnpaddedLayout(60, 30, torch.tensor([29, *[30] * 59]))
    assert len(full.unpad(torch.ones(60, 30, 1))) == 60 * 30  # unpadding never adds more padding


def test_padding_restores_what_was_unpadded() -> None:
    torch.manual_seed(0)
    x, lengths = torch.randn(9, 20, 3), torch.randint(0, 16, (9,))
    layout = UnpaddedLayout(9, 20, lengths)
    restored = layout.pad(layout.unpad(x))
    mask = torch.arange(20) < lengths[:, None]
    assert torch.equal(restored[mask], x[mask])
    assert torch.equal(layout.unpad(x)[: layout.count], x[mask])
