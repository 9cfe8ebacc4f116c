"""cuBLASLt without a GPU: when it is not used, and which kernel is selected.

Its results are compared with PyTorch's by `benchmarks/train.py --gpu` (`--part text` is enough).
"""

from typing import Any

import pytest
import torch

from regard.kernels.cuda import cublaslt

pytestmark = pytest.mark.start_early(13)


def test_cpu_tensors_are_not_supported() -> None:
    x, weight = torch.zeros(4, 8, dtype=torch.bfloat16), torch.zeros(8, 8, dtype=torch.bfloat16)
    assert not cublaslt.supports_linear_gelu(x, weight, None, weight)


def plan_of(kernels: list[Any]) -> Any:
    none: Any = None
    return cublaslt.Plan(none, none, none, none, 4, 1, False, kernels)


@pytest.mark.parametrize(
    ("results", "seconds", "chosen"),
    [
        ([1.0, 1.0, 1.0], [3.0, 1.0, 2.0], [1]),
        ([1.0, 1.5, 1.0], [3.0, 1.0, 2.0], [2]),  # the fastest rounds differently from PyTorch
        ([1.5, 1.5, 1.5], [3.0, 1.0, 2.0], []),  # all of them do
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0]),
    ],
)
def test_fastest_bit_identical_kernel_is_selected(
    results: list[float], seconds: list[float], chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = torch.empty(3, 4, dtype=torch.bfloat16)
    plan = plan_of([0, 1, 2])

    def multiply(kernel: Any) -> list[torch.Tensor]:
        return [out.fill_(1.0 if kernel is None else results[kernel])]

    monkeypatch.setattr(cublaslt, "_seconds", lambda multiply, kernel, calls: seconds[kernel])
    cublaslt._try_kernels(plan, [None, *plan.kernels], multiply, None)
    assert plan.tried
    assert plan.kernels == chosen


def test_deterministic_mode_selects_the_first_bit_identical_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(multiply: Any, kernel: Any, calls: int) -> float:
        raise AssertionError("nothing is timed in deterministic mode")

    monkeypatch.setattr(cublaslt, "_seconds", refuse)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    plan = plan_of([0, 1, 2])
    out = torch.empty(3, 4, dtype=torch.bfloat16)
    results = {None: 1.0, 0: 1.5, 1: 1.0, 2: 1.0}
    cublaslt._try_kernels(plan, [None, *plan.kernels], lambda kernel: [out.fill_(results[kernel])], None)  # type: ignore[index]
    assert plan.kernels == [1]


def test_single_kernel_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(multiply: Any, kernel: Any, calls: int) -> float:
        raise AssertionError("there is nothing to choose")

    monkeypatch.setattr(cublaslt, "_seconds", refuse)
    plan = plan_of([7])
    cublaslt._try_kernels(plan, [None, 7], lambda kernel: [torch.ones(2, 4, dtype=torch.bfloat16)], None)  # type: ignore[list-item]
    assert plan.kernels == [7]


def test_trying_kernels_does_not_change_the_accumulated_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    accumulate = torch.full((3, 4), 2.0, dtype=torch.bfloat16)
    plan = plan_of([0, 1])

    def seconds(multiply: Any, kernel: Any, calls: int) -> float:
        multiply(kernel)
        return 2.0 - kernel

    monkeypatch.setattr(cublaslt, "_seconds", seconds)
    cublaslt._try_kernels(plan, [None, *plan.kernels], lambda kernel: [accumulate.add_(1.0)], accumulate)
    assert plan.kernels == [1]
    assert bool((accumulate == 2).all())


def test_unsupported_products_are_computed_by_pytorch() -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = ((2, 3, 8), (5, 8), (6, 5), (6, 8))
    x, weight, grad, accumulate = (torch.randn(size, generator=generator) for size in sizes)
    bias = torch.randn(5, generator=generator)
    expected = x @ weight.T
    torch.testing.assert_close(cublaslt.linear(x, weight, None), expected)
    torch.testing.assert_close(cublaslt.linear(x, weight, bias), expected + bias)
    torch.testing.assert_close(cublaslt.linear_dgrad(grad, weight), grad @ weight)
    total = accumulate + grad @ weight
    torch.testing.assert_close(cublaslt.linear_dgrad(grad, weight, accumulate), total)
