"""Products that bend what comes out of them before it is written, by cuBLASLt.

PyTorch brings that library along and takes its products from it, but not the one thing that saves a feed-forward two
trips through memory: to apply GELU while a product is still in registers and write down what it was before, and on the
way back to multiply by its slope there. So this calls the library itself, through ctypes. Its GELU is the one by tanh.

Whatever stands against it (another device, precision or size, no such library) is seen by `knows`, before anything is
computed. The library names several kernels for a size, and the first need not be the fastest. All are timed on the
first product of that size. One is kept only if it gives the same bits there as the first, by their sum, so that which
one wins on a busy device makes no difference to what a step gives.
"""

import ctypes
import statistics
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

# The names are those of cublasLt.h, as far as a line is long.
_COMPUTE_32F, _R_32F = 68, 0
_TYPES = {torch.bfloat16: 14}
_DESC_TRANS_A, _DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_AUX_POINTER, _DESC_AUX_LD = 3, 7, 8, 11, 12
_PREFERENCE_WORKSPACE, _PREFERENCE_ALIGNMENTS = 1, (5, 6, 7, 8)
_EPILOGUE_BIAS, _EPILOGUE_GELU_AUX, _EPILOGUE_DGELU = 4, 160, 192
BEND = "gelu-tanh"
"""What a feed-forward's middle is bent by here."""
_ALIGNMENT = 16
"""Bytes on whose multiples every matrix begins."""
_WORKSPACE = 32 * 2**20
"""The most bytes that a product may take to work in."""
_KERNELS, _SAMPLES, _CALLS = 8, 5, 4
"""Kernels that are timed, how often, and products of a sample."""


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@dataclass
class _Plan:
    """All that a product of some size needs besides where its matrices lie."""

    description: c_void_p
    first: c_void_p
    second: c_void_p
    out: c_void_p
    kernels: list[_Heuristic]
    """Those that the library names; only the fastest once they are timed."""


def knows(x: Tensor, widen: Tensor, bias: Tensor | None, narrow: Tensor) -> bool:
    """Whether the products of a feed-forward can be had from here.

    x: # (…, width); widen: # (hidden, width); bias: # (hidden,); narrow: # (width, hidden)
    """
    weights = [each for each in (widen, bias, narrow) if each is not None]
    if x.device.type != "cuda" or x.dtype not in _TYPES or any(each.dtype != x.dtype for each in weights):
        return False
    rows, (hidden, width) = x.numel() // x.shape[-1], widen.shape
    if not rows or hidden % 8 or width % 8 or any(each.data_ptr() % _ALIGNMENT for each in (x, *weights)):
        return False
    if not all(each.is_contiguous() for each in weights):
        return False
    forward = _plan(x.device, x.dtype, rows, width, hidden, forward=True, biased=bias is not None)
    back = _plan(x.device, x.dtype, rows, width, hidden, forward=False, biased=False)
    return forward is not None and back is not None


def bent_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """GELU of x · weightᵀ + bias, and what it is the GELU of.  x: # (rows, width); weight: # (hidden, width)"""
    rows, width = x.shape
    plan = _plan(x.device, x.dtype, rows, width, len(weight), forward=True, biased=bias is not None)
    bent, before = x.new_empty(2, rows, len(weight))
    _multiply(plan, weight, x, bent, before, bias)
    return bent, before


def product_bent_back(slope: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """slope · weight times GELU's slope at `before`.  slope: # (rows, width); weight: # (width, hidden)"""
    rows, width = slope.shape
    plan = _plan(slope.device, slope.dtype, rows, width, weight.shape[1], forward=False, biased=False)
    back = torch.empty_like(before)
    _multiply(plan, weight, slope, back, before, None)
    return back


def _multiply(plan: _Plan | None, weight: Tensor, x: Tensor, out: Tensor, before: Tensor, bias: Tensor | None) -> None:
    library = _library()
    assert plan is not None
    _describe(library, plan.description, _DESC_AUX_POINTER, c_void_p(before.data_ptr()))
    if bias is not None:
        _describe(library, plan.description, _DESC_BIAS_POINTER, c_void_p(bias.data_ptr()))
    one, none, place = c_float(1.0), c_float(0.0), c_void_p(out.data_ptr())

    def multiply(kernel: _Heuristic) -> None:
        work = torch.empty(kernel.workspace, dtype=torch.uint8, device=x.device)
        status = library.cublasLtMatmul(
            _handle(x.device), plan.description, byref(one),
            c_void_p(weight.data_ptr()), plan.first, c_void_p(x.data_ptr()), plan.second, byref(none),
            place, plan.out, place, plan.out, byref(kernel.algorithm),
            c_void_p(work.data_ptr()), c_size_t(len(work)), c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        _checked(status)

    with torch.cuda.device(x.device):
        if len(plan.kernels) > 1 and not torch.cuda.is_current_stream_capturing():
            plan.kernels = [_fastest(plan.kernels, multiply, (out, before))]
        multiply(plan.kernels[0])


def _fastest(kernels: list[_Heuristic], multiply: Callable[[_Heuristic], None], made: tuple[Tensor, ...]) -> _Heuristic:
    """The fastest of those that make the same numbers as the first."""
    same, seconds = None, []
    for kernel in kernels:
        multiply(kernel)
        found = [int(each.view(torch.int16).sum(dtype=torch.int64)) for each in made]
        same = same or found
        seconds.append(_seconds(multiply, kernel) if found == same else float("inf"))
    return kernels[seconds.index(min(seconds))]


def _seconds(multiply: Callable[[_Heuristic], None], kernel: _Heuristic) -> float:
    taken: list[float] = []
    for _ in range(_SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(_CALLS):
            multiply(kernel)
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end))
    return statistics.median(taken)


@cache
def _library() -> Any:
    """cuBLASLt as PyTorch has loaded it; None where there is none."""
    if torch.version.cuda is None:
        return None
    try:
        return ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
    except OSError:
        return None


@cache
def _handle(device: torch.device) -> c_void_p:
    handle = c_void_p()
    with torch.cuda.device(device):
        _checked(_library().cublasLtCreate(byref(handle)))
    return handle


@cache
def _plan(
    device: torch.device, dtype: torch.dtype, rows: int, width: int, hidden: int, *, forward: bool, biased: bool
) -> _Plan | None:
    """How (rows, hidden) comes about; None if the library has no kernel for it.

    The library counts columns first: to it a matrix as PyTorch lays it out is its own transpose, and what comes out
    has hidden rows.
    """
    library = _library()
    if library is None:
        return None
    kind = c_int(_TYPES[dtype])
    description, preference = c_void_p(), c_void_p()
    _checked(library.cublasLtMatmulDescCreate(byref(description), c_int(_COMPUTE_32F), c_int(_R_32F)))
    epilogue = _EPILOGUE_GELU_AUX if forward else _EPILOGUE_DGELU
    _describe(library, description, _DESC_EPILOGUE, c_uint32(epilogue | (_EPILOGUE_BIAS if biased else 0)))
    _describe(library, description, _DESC_TRANS_A, c_int32(forward))
    _describe(library, description, _DESC_AUX_LD, c_int64(hidden))
    # The library takes from these only how they are aligned.
    for pointer in (_DESC_AUX_POINTER, *([_DESC_BIAS_POINTER] if biased else [])):
        _describe(library, description, pointer, c_void_p(_ALIGNMENT))
    sizes = (width, hidden) if forward else (hidden, width), (width, rows), (hidden, rows)
    first, second, out = (_layout(library, kind, *size) for size in sizes)
    _checked(library.cublasLtMatmulPreferenceCreate(byref(preference)))
    settings = [
        (_PREFERENCE_WORKSPACE, c_uint64(_WORKSPACE)),
        *((each, c_uint32(_ALIGNMENT)) for each in _PREFERENCE_ALIGNMENTS),
    ]
    for setting, value in settings:
        _checked(
            library.cublasLtMatmulPreferenceSetAttribute(preference, setting, byref(value), c_size_t(sizeof(value)))
        )
    found, count = (_Heuristic * _KERNELS)(), c_int()
    status = library.cublasLtMatmulAlgoGetHeuristic(
        _handle(device), description, first, second, out, out, preference, c_int(_KERNELS), found, byref(count)
    )
    library.cublasLtMatmulPreferenceDestroy(preference)
    kernels = [] if status else [each for each in found[: count.value] if not each.state]
    return _Plan(description, first, second, out, kernels) if kernels else None


def _layout(library: Any, kind: c_int, rows: int, columns: int) -> c_void_p:
    layout = c_void_p()
    _checked(library.cublasLtMatrixLayoutCreate(byref(layout), kind, c_uint64(rows), c_uint64(columns), c_int64(rows)))
    return layout


def _describe(library: Any, description: c_void_p, attribute: int, value: Any) -> None:
    _checked(
        library.cublasLtMatmulDescSetAttribute(description, c_int(attribute), byref(value), c_size_t(sizeof(value)))
    )


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt answered with status {status}.")
