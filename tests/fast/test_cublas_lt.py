"""What can be said of products by cuBLASLt without a GPU: where they are not taken, and which kernel is kept.

What they compute is compared with PyTorch's by `benchmarks/train.py --gpu` (`--part text` is enough).
"""

from typing import Any

import pytest
import torch

from regard.fast import cublas_lt


def test_a_cpu_is_left_to_others() -> None:
    x, weight = torch.zeros(4, 8, dtype=torch.bfloat16), torch.zeros(8, 8, dtype=torch.bfloat16)
    assert not cublas_lt.knows(x, weight, None, weight)


def plan_of(kernels: list[Any]) -> Any:
    none: Any = None
    return cublas_lt._Plan(none, none, none, none, 4, 1, False, kernels)


@pytest.mark.parametrize(
    ("made", "seconds", "kept"),
    [
        ([1.0, 1.0, 1.0], [3.0, 1.0, 2.0], [1]),
        ([1.0, 1.5, 1.0], [3.0, 1.0, 2.0], [2]),  # the fastest rounds otherwise than PyTorch
        ([1.5, 1.5, 1.5], [3.0, 1.0, 2.0], []),  # all do
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0]),
    ],
)
def test_the_fastest_kernel_is_kept_of_those_that_give_the_same_numbers_as_pytorch(
    made: list[float], seconds: list[float], kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = torch.empty(3, 4, dtype=torch.bfloat16)
    plan = plan_of([0, 1, 2])

    def multiply(kernel: Any) -> list[torch.Tensor]:
        return [out.fill_(1.0 if kernel is None else made[kernel])]

    monkeypatch.setattr(cublas_lt, "_seconds", lambda multiply, kernel, calls: seconds[kernel])
    cublas_lt._try(plan, [None, *plan.kernels], multiply, None)
    assert plan.tried
    assert plan.kernels == kept


def test_a_deterministic_run_takes_the_first_kernel_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(multiply: Any, kernel: Any, calls: int) -> float:
        raise AssertionError("a clock decides nothing here")

    monkeypatch.setattr(cublas_lt, "_seconds", refuse)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    plan = plan_of([0, 1, 2])
    out = torch.empty(3, 4, dtype=torch.bfloat16)
    made = {None: 1.0, 0: 1.5, 1: 1.0, 2: 1.0}
    cublas_lt._try(plan, [None, *plan.kernels], lambda kernel: [out.fill_(made[kernel])], None)  # type: ignore[index]
    assert plan.kernels == [1]


def test_the_only_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(multiply: Any, kernel: Any, calls: int) -> float:
        raise AssertionError("there is nothing to choose")

    monkeypatch.setattr(cublas_lt, "_seconds", refuse)
    plan = plan_of([7])
    cublas_lt._try(plan, [None, 7], lambda kernel: [torch.ones(2, 4, dtype=torch.bfloat16)], None)  # type: ignore[list-item]
    assert plan.kernels == [7]


def test_kernels_that_add_begin_from_the_same_numbers_and_leave_them(monkeypatch: pytest.MonkeyPatch) -> None:
    onto = torch.full((3, 4), 2.0, dtype=torch.bfloat16)
    plan = plan_of([0, 1])

    def seconds(multiply: Any, kernel: Any, calls: int) -> float:
        multiply(kernel)
        return 2.0 - kernel

    monkeypatch.setattr(cublas_lt, "_seconds", seconds)
    cublas_lt._try(plan, [None, *plan.kernels], lambda kernel: [onto.add_(1.0)], onto)
    assert plan.kernels == [1]
    assert bool((onto == 2).all())


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
