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
    found: Any = cublas_lt._fastest(kernels, multiply, [out, torch.ones_like(out)], None)
    assert found == kept


def test_kernels_that_add_begin_from_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    start = torch.full((3, 4), 2.0, dtype=torch.bfloat16)
    out = start.clone()
    kernels: Any = [0, 1]

    def multiply(kernel: Any) -> None:
        out.add_(1.0)

    monkeypatch.setattr(cublas_lt, "_seconds", lambda multiply, kernel: 2.0 - kernel)
    found: Any = cublas_lt._fastest(kernels, multiply, [out], start)
    assert found == 1


def test_what_the_library_does_not_take_is_multiplied_all_the_same() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, slope, onto = (torch.randn(size, generator=generator) for size in ((2, 3, 8), (5, 8), (6, 5), (6, 8)))
    bias = torch.randn(5, generator=generator)
    wanted = x @ weight.T
    torch.testing.assert_close(cublas_lt.product(x, weight, None), wanted)
    torch.testing.assert_close(cublas_lt.product(x, weight, bias), wanted + bias)
    torch.testing.assert_close(cublas_lt.product_back(slope, weight), slope @ weight)
    summed = onto + slope @ weight
    torch.testing.assert_close(cublas_lt.product_back(slope, weight, onto), summed)
