"""Grouped matrix products: every implementation against one product per row."""

import pytest
import torch

from regard.model.grouped_linear import all_groups_matmul, grouped_linear, grouped_mm


@pytest.mark.parametrize("ends", [(2, 2, 5), (0, 0, 5), (5, 5, 5), (1, 2, 3), (0, 0, 0)], ids=str)
def test_every_implementation_equals_separate_products(ends):
    """PyTorch's grouped_mm supports float32 on the CPU. Rows after the last group are padding and must give zeros."""
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weight = torch.randn(3, 16, 8, generator=torch.Generator().manual_seed(2)).requires_grad_()
    end = torch.tensor(ends, dtype=torch.int32)
    compiled = torch.compile(grouped_linear, fullgraph=True, backend="aot_eager")
    implementations = {
        "grouped_linear": lambda: grouped_linear(x, weight, end, padded=True),
        "grouped_mm": lambda: grouped_mm(x, weight, end, padded=True),
        "all_groups_matmul": lambda: all_groups_matmul(x, weight, end),
        "compiled": lambda: compiled(x, weight, end, padded=True),
    }
    group = [sum(row >= each for each in ends) for row in range(5)]
    rows = [x[row] @ weight[one].T if one < 3 else torch.zeros(16) for row, one in enumerate(group)]
    expected = torch.stack(rows)
    expected_grads = torch.autograd.grad(expected.square().sum() + 0 * (x.sum() + weight.sum()), [x, weight])
    for name, implementation in implementations.items():
        actual = implementation()
        torch.testing.assert_close(actual, expected, msg=lambda text, name=name: f"{name}: {text}")
        actual_grads = torch.autograd.grad(actual.square().sum(), [x, weight])
        torch.testing.assert_close(actual_grads, expected_grads, msg=lambda text, name=name: f"{name}: {text}")
