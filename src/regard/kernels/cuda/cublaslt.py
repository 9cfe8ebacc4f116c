"""Linear layers by cuBLASLt: faster kernels than PyTorch chooses, and GELU in the epilogue of the product.

PyTorch comes with this library and takes its products from it, but leaves three things unused. The library offers
several kernels for a size, and the first, which PyTorch takes, need not be the fastest. Where a kernel may use a
workspace, the library clears a few bytes of it before every product, for which a CUDA graph waits longer than for some
of the products; the same kernels can do without. And it can apply GELU (the tanh form) while the product is still in
registers and store the pre-activation, and in the backward pass multiply by GELU's derivative, which saves a
feed-forward two passes over memory. So this module calls the library itself, through ctypes (`cublaslt_api.py`).

Whatever it cannot compute (other devices and precisions, odd sizes, a missing library) is found out before anything is
computed, and PyTorch does it. Kernels are tried at the first product of a size. One is used only if it gives the same
bits as PyTorch's own, compared by their sum, so that results do not depend on which kernel wins on a busy device.
Products with GELU have no counterpart in PyTorch, and are compared with the first kernel that the library offers.
"""

import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from regard.kernels.cuda.cublaslt_api import (
    ALIGNMENT,
    EPILOGUE_BIAS,
    EPILOGUE_DGELU,
    EPILOGUE_GELU_AUX,
    EPILOGUE_NONE,
    TYPES,
    Heuristic,
    Plan,
    launch,
    make_plan,
)

ACTIVATION = "gelu-tanh"
"""The activation function that can be computed in the epilogue."""
_SMALL = 1 << 28
"""Multiplications from which on a product may be computed here. Products that are not large enough for their kernels to
be timed are computed here only within a CUDA graph, since launching them from Python is slower than from PyTorch."""
_SAMPLES, _MAX_CALLS, _MAX_SAMPLE_WORK = 5, 4, 1 << 37
"""How often a kernel is timed, and the most calls and the most multiplications in one sample."""


PyTorchProduct = Callable[[], Tensor]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b.  x: # (…, width); weight: # (size, width)"""
    plan = _plan_of(x, weight, bias, len(weight), transposed=True)
    return _linear(plan, lambda: functional.linear(x, weight, bias), weight, x, None, bias)


def linear_dgrad(grad: Tensor, weight: Tensor, accumulate: Tensor | None = None) -> Tensor:
    """The gradient of a linear layer's input, grad · W; added to another gradient, if one is given.

    grad: # (rows, size); weight: # (size, width); accumulate: # (rows, width), which is overwritten
    """
    plan = _plan_of(grad, weight, accumulate, weight.shape[1], transposed=False, accumulate=accumulate is not None)
    return _linear(
        plan,
        lambda: grad @ weight if accumulate is None else accumulate.addmm_(grad, weight),
        weight,
        grad,
        accumulate,
        None,
    )


def supports_linear_gelu(x: Tensor, up: Tensor, bias: Tensor | None, down: Tensor) -> bool:
    """Whether `linear_gelu` and `linear_dgrad_dgelu` can compute a feed-forward.

    x: # (…, width); up: # (hidden, width); bias: # (hidden,); down: # (width, hidden)
    """
    if not x.numel() or x.shape[-1] != up.shape[1] or down.shape != up.shape[::-1]:
        return False
    if not _fits(x, up, bias, down):
        return False
    return _gelu_plan(x, len(up), has_bias=bias is not None) is not None and _dgelu_plan(x, len(up)) is not None


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """GELU of x Wᵀ + b, and the pre-activation.  x: # (rows, width); weight: # (hidden, width)"""
    hidden, pre_activation = x.new_empty(2, len(x), len(weight))
    _linear_gelu(_gelu_plan(x, len(weight), has_bias=bias is not None), weight, x, hidden, pre_activation, bias)
    return hidden, pre_activation


def linear_dgrad_dgelu(grad: Tensor, weight: Tensor, pre_activation: Tensor) -> Tensor:
    """grad · W times GELU's derivative at the pre-activation.  grad: # (rows, width); weight: # (width, hidden)"""
    out = torch.empty_like(pre_activation)
    _linear_gelu(_dgelu_plan(grad, weight.shape[1]), weight, grad, out, pre_activation)
    return out


def _fits(*matrices: Tensor | None) -> bool:
    """Whether the library can take these matrices: bfloat16, on one GPU, contiguous and aligned."""
    tensors = [each for each in matrices if each is not None]
    return all(
        each.device.type == "cuda"
        and each.device == tensors[0].device
        and each.dtype in TYPES
        and each.dtype == tensors[0].dtype
        and each.is_contiguous()
        and not each.shape[-1] % 8
        and not each.data_ptr() % ALIGNMENT
        for each in tensors
    )


def _plan_of(
    x: Tensor, weight: Tensor, other: Tensor | None, size: int, *, transposed: bool, accumulate: bool = False
) -> Plan | None:
    """The plan for a product of these matrices; None where PyTorch is to compute it.

    x: # (…, inner); `other` is the bias, or what the product is added to
    """
    if x.shape[-1] != weight.shape[transposed] or x.numel() * size < _SMALL:
        return None  # PyTorch raises an error for shapes that do not match
    if size % 8 or not _fits(x, weight, other):
        return None
    epilogue = EPILOGUE_BIAS if transposed and other is not None else EPILOGUE_NONE
    return make_plan(*_key(x), size, transposed=transposed, epilogue=epilogue, accumulate=accumulate)


def _gelu_plan(x: Tensor, hidden: int, *, has_bias: bool) -> Plan | None:
    epilogue = EPILOGUE_GELU_AUX | (EPILOGUE_BIAS if has_bias else 0)
    return make_plan(*_key(x), hidden, transposed=True, epilogue=epilogue)


def _dgelu_plan(grad: Tensor, hidden: int) -> Plan | None:
    return make_plan(*_key(grad), hidden, transposed=False, epilogue=EPILOGUE_DGELU)


def _key(x: Tensor) -> tuple[torch.device, torch.dtype, int, int]:
    """Device, precision, rows and columns.  x: # (…, columns)"""
    return x.device, x.dtype, x.numel() // x.shape[-1], x.shape[-1]


def _linear(
    plan: Plan | None,
    pytorch_product: PyTorchProduct,
    weight: Tensor,
    x: Tensor,
    accumulate: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """A product by the best kernel, which is found by trial at the first product of a size."""
    if plan is None:
        return pytorch_product()
    capturing = torch.cuda.is_current_stream_capturing()

    def multiply(kernel: Heuristic | None) -> list[Tensor]:
        if kernel is None:
            return [pytorch_product()]
        out = x.new_empty(*x.shape[:-1], plan.size) if accumulate is None else accumulate
        launch(plan, kernel, weight, x, out, bias=bias)
        return [out]

    if not plan.tried and not capturing:
        _try_kernels(plan, [None, *plan.kernels], multiply, accumulate)
    use_kernel = plan.tried and bool(plan.kernels) and (plan.large or capturing)
    return multiply(plan.kernels[0] if use_kernel else None)[0]


def _linear_gelu(
    plan: Plan | None, weight: Tensor, x: Tensor, out: Tensor, pre_activation: Tensor, bias: Tensor | None = None
) -> None:
    """The same for a product with GELU or its derivative, which PyTorch does not have."""
    assert plan is not None

    def multiply(kernel: Heuristic | None) -> list[Tensor]:
        assert kernel is not None
        launch(plan, kernel, weight, x, out, pre_activation, bias)
        return [out, pre_activation]

    if not plan.tried and not torch.cuda.is_current_stream_capturing():
        _try_kernels(plan, plan.kernels, multiply, None)
    multiply(plan.kernels[0])


Multiply = Callable[[Heuristic | None], list[Tensor]]
"""Computes a product with a kernel, or with PyTorch if it is None, and returns the tensors that were written."""


def _try_kernels(
    plan: Plan, kernels: Sequence[Heuristic | None], multiply: Multiply, accumulate: Tensor | None
) -> None:
    """Choose the kernel: of those that give the same bits as the first, the fastest.

    Where PyTorch is set to be deterministic, no clock decides: the first of them is chosen. PyTorch's own, None, is
    there for its bits only; it is one of the others, after some bytes are cleared.
    """
    initial = None if accumulate is None else accumulate.clone()
    checksums = []
    for kernel in kernels:
        if accumulate is not None and initial is not None:
            accumulate.copy_(initial)
        checksums.append([int(tensor.view(torch.int64).sum()) for tensor in multiply(kernel)])
    same = [
        kernel
        for kernel, checksum in zip(kernels, checksums, strict=True)
        if kernel is not None and checksum == checksums[0]
    ]
    if torch.are_deterministic_algorithms_enabled():
        same = same[:1]
    elif len(same) > 1:
        # Round-robin, since a device that gets warm slows down.
        calls = max(1, min(_MAX_CALLS, _MAX_SAMPLE_WORK // plan.work))
        rounds = [[_seconds(multiply, kernel, calls) for kernel in same] for _ in range(_SAMPLES)]
        seconds = [statistics.median(times) for times in zip(*rounds, strict=True)]
        same = [same[seconds.index(min(seconds))]]
    if accumulate is not None and initial is not None:
        accumulate.copy_(initial)
    plan.kernels, plan.tried = same, True


def _seconds(multiply: Multiply, kernel: Heuristic, calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    multiply(kernel)  # so that the device is busy when the first of the others is launched
    begin.record()
    for _ in range(calls):
        multiply(kernel)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / calls
