"""What can be said of products by cuBLASLt without a GPU: where they are not taken, and which kernel is kept.

What they compute is compared with PyTorch's by `benchmarks/train.py --gpu --part text`.
"""

from typing import Any

import pytest
import torch

from regard.fast import cublas_lt


def test_a_cpu_is_left_to_others() -> None:
    x, weight = torch.zeros(4, 8, dtype=torch.bfloat16), torch.zeros(8, 8, dtype=torch.bfloat16)
    assert not cublas_lt.knows(x, weight, None, weight)


@pytest.mark.parametrize(
    ("made", "seconds", "kept"),
    [
        ([1.0, 1.0, 1.0], [3.0, 1.0, 2.0], 1),
        ([1.0, 1.5, 1.0], [3.0, 1.0, 2.0], 2),  # the fastest rounds otherwise than the first
        ([1.0, 1.5, 1.5], [3.0, 1.0, 2.0], 0),
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], 0),
    ],
)
def test_the_fastest_kernel_is_kept_of_those_that_give_the_same_numbers(
    made: list[float], seconds: list[float], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = torch.empty(3, 4, dtype=torch.bfloat16)
    kernels: Any = [0, 1, 2]

    def multiply(kernel: Any) -> None:
        out.fill_(made[kernel])

    monkeypatch.setattr(cublas_lt, "_seconds", lambda multiply, kernel: seconds[kernel])
    found: Any = cublas_lt._fastest(kernels, multiply, (out, torch.ones_like(out)))
    assert found == kept
