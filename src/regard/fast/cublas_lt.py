"""Products that bend what comes out of them before it is written, by cuBLASLt.

PyTorch brings that library along and takes its products from it, but not the one thing that saves a feed-forward two
trips through memory: to apply GELU while a product is still in registers and write down what it was before, and on the
way back to multiply by its slope there. So this calls the library itself, through ctypes. Its GELU is the one by tanh.

Whatever stands against it (another device, precision or size, no such library) is seen by `knows`, before anything is
computed. The same sizes are always given the same kernel, so that the same step gives the same numbers.
"""

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

# The names are those of cublasLt.h, as far as a line is long.
_COMPUTE_32F, _R_32F = 68, 0
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
_DESC_TRANS_A, _DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_AUX_POINTER, _DESC_AUX_LD = 3, 7, 8, 11, 12
_PREFERENCE_WORKSPACE, _PREFERENCE_ALIGNMENTS = 1, (5, 6, 7, 8)
_EPILOGUE_BIAS, _EPILOGUE_GELU_AUX, _EPILOGUE_DGELU = 4, 160, 192
BEND = "gelu-tanh"
"""What a feed-forward's middle is bent by here."""
_ALIGNMENT = 16
"""Bytes on whose multiples every matrix begins."""


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class _Plan(NamedTuple):
    """All that a product of some size needs besides where its matrices lie."""

    description: c_void_p
    first: c_void_p
    second: c_void_p
    out: c_void_p
    heuristic: _Heuristic


def knows(x: Tensor, widen: Tensor, narrow: Tensor, *, biased: bool) -> bool:
    """Whether the products of a feed-forward can be had from here.

    x: # (…, width); widen: # (hidden, width); narrow: # (width, hidden)
    """
    if x.device.type != "cuda" or x.dtype not in _TYPES or not x.dtype == widen.dtype == narrow.dtype:
        return False
    rows, (hidden, width) = x.numel() // x.shape[-1], widen.shape
    if not rows or hidden % 8 or width % 8 or any(each.data_ptr() % _ALIGNMENT for each in (x, widen, narrow)):
        return False
    if not widen.is_contiguous() or not narrow.is_contiguous():
        return False
    forward = _plan(x.device, x.dtype, rows, width, hidden, forward=True, biased=biased)
    return (
        forward is not None and _plan(x.device, x.dtype, rows, width, hidden, forward=False, biased=False) is not None
    )


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
    with torch.cuda.device(x.device):
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        status = library.cublasLtMatmul(
            _handle(x.device), plan.description, byref(one),
            c_void_p(weight.data_ptr()), plan.first, c_void_p(x.data_ptr()), plan.second, byref(none),
            place, plan.out, place, plan.out, byref(plan.heuristic.algorithm), None, c_size_t(0), stream,
        )  # fmt: skip
    _checked(status)


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
        (_PREFERENCE_WORKSPACE, c_uint64(0)),
        *((each, c_uint32(_ALIGNMENT)) for each in _PREFERENCE_ALIGNMENTS),
    ]
    for setting, value in settings:
        _checked(
            library.cublasLtMatmulPreferenceSetAttribute(preference, setting, byref(value), c_size_t(sizeof(value)))
        )
    found, count = _Heuristic(), c_int()
    status = library.cublasLtMatmulAlgoGetHeuristic(
        _handle(device), description, first, second, out, out, preference, c_int(1), byref(found), byref(count)
    )
    library.cublasLtMatmulPreferenceDestroy(preference)
    return None if status or not count.value or found.state else _Plan(description, first, second, out, found)


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
