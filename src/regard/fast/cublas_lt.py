"""Large products by cuBLASLt, with the kernel that is fastest here, and such as bend what comes out of them.

PyTorch brings that library along and takes its products from it, but leaves two things out. The library names several
kernels for a size, and the first, which PyTorch takes, need not be the fastest. And it can apply GELU (the one by tanh)
while a product is still in registers and write down what it was before, and on the way back multiply by its slope
there, which saves a feed-forward two trips through memory. So this calls the library itself, through ctypes.

Whatever stands against it (another device or precision, an odd size, no such library) is seen before anything is
computed, and PyTorch does it. Kernels are timed on the first product of a size. One is kept only if it gives the same
bits there as the first, by their sum, so that which one wins on a busy device makes no difference to what a step gives.
"""

import ctypes
import statistics
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# The names are those of cublasLt.h, as far as a line is long.
_COMPUTE_32F, _R_32F = 68, 0
_TYPES = {torch.bfloat16: 14}
_DESC_TRANS_A, _DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_AUX_POINTER, _DESC_AUX_LD = 3, 7, 8, 11, 12
_PREFERENCE_WORKSPACE, _PREFERENCE_ALIGNMENTS = 1, (5, 6, 7, 8)
_EPILOGUE_NONE, _EPILOGUE_BIAS, _EPILOGUE_GELU_AUX, _EPILOGUE_DGELU = 1, 4, 160, 192
_BENDING = (_EPILOGUE_GELU_AUX, _EPILOGUE_GELU_AUX | _EPILOGUE_BIAS, _EPILOGUE_DGELU)
BEND = "gelu-tanh"
"""What a feed-forward's middle is bent by here."""
_ALIGNMENT = 16
"""Bytes on whose multiples every matrix begins."""
_WORKSPACE = 32 * 2**20
"""The most bytes that a product may take to work in."""
_LARGE = 1 << 34
"""Multiplications from which on a product takes so long that the choice of its kernel pays."""
_KERNELS, _SAMPLES, _CALLS = 8, 5, 2
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
    added: bool
    """Whether it is added to what is there."""
    kernels: list[_Heuristic]
    """Those that the library names; only the fastest once they are timed."""
    turn: Lock = field(default_factory=Lock)
    """Held by who multiplies, since the description also says where some matrices lie."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias.  x: # (…, width); weight: # (size, width)"""
    plan = _large_plan(x, weight, bias, len(weight), transposed=True)
    if plan is None:
        return functional.linear(x, weight, bias)
    out = x.new_empty(*x.shape[:-1], len(weight))
    _multiply(plan, weight, x, out, bias=bias)
    return out


def product_back(slope: Tensor, weight: Tensor, onto: Tensor | None = None) -> Tensor:
    """slope · weight; added to what flows back already, if anything does.

    slope: # (rows, size); weight: # (size, width); onto: # (rows, width), which is overwritten
    """
    plan = _large_plan(slope, weight, onto, weight.shape[1], transposed=False, added=onto is not None)
    if plan is None:
        return slope @ weight if onto is None else onto.addmm_(slope, weight)
    out = slope.new_empty(len(slope), weight.shape[1]) if onto is None else onto
    _multiply(plan, weight, slope, out)
    return out


def knows(x: Tensor, widen: Tensor, bias: Tensor | None, narrow: Tensor) -> bool:
    """Whether the products of a feed-forward that bend can be had from here.

    x: # (…, width); widen: # (hidden, width); bias: # (hidden,); narrow: # (width, hidden)
    """
    if not x.numel() or x.shape[-1] != widen.shape[1] or narrow.shape != widen.shape[::-1]:
        return False
    if not _fits(x, widen, bias, narrow):
        return False
    return _bending(x, len(widen), biased=bias is not None) is not None and _bending_back(x, len(widen)) is not None


def bent_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """GELU of x · weightᵀ + bias, and what it is the GELU of.  x: # (rows, width); weight: # (hidden, width)"""
    bent, before = x.new_empty(2, len(x), len(weight))
    _multiply(_bending(x, len(weight), biased=bias is not None), weight, x, bent, before, bias)
    return bent, before


def product_bent_back(slope: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """slope · weight times GELU's slope at `before`.  slope: # (rows, width); weight: # (width, hidden)"""
    back = torch.empty_like(before)
    _multiply(_bending_back(slope, weight.shape[1]), weight, slope, back, before)
    return back


def _fits(*matrices: Tensor | None) -> bool:
    """Whether the library can take matrices: of one precision that it is asked for, on one GPU, without holes."""
    given = [each for each in matrices if each is not None]
    return all(
        each.device.type == "cuda"
        and each.device == given[0].device
        and each.dtype in _TYPES
        and each.dtype == given[0].dtype
        and each.is_contiguous()
        and not each.shape[-1] % 8
        and not each.data_ptr() % _ALIGNMENT
        for each in given
    )


def _large_plan(
    x: Tensor, weight: Tensor, other: Tensor | None, size: int, *, transposed: bool, added: bool = False
) -> _Plan | None:
    """How a large product of such matrices comes about; None where PyTorch's own is as good.

    x: # (…, inner); `other` is its bias or what it is added to
    """
    if x.shape[-1] != weight.shape[transposed] or x.numel() * size < _LARGE:
        return None  # what does not go together is PyTorch's to refuse
    if size % 8 or not _fits(x, weight, other):
        return None
    epilogue = _EPILOGUE_BIAS if transposed and other is not None else _EPILOGUE_NONE
    return _plan(*_place(x), size, transposed=transposed, epilogue=epilogue, added=added)


def _bending(x: Tensor, hidden: int, *, biased: bool) -> _Plan | None:
    epilogue = _EPILOGUE_GELU_AUX | (_EPILOGUE_BIAS if biased else 0)
    return _plan(*_place(x), hidden, transposed=True, epilogue=epilogue)


def _bending_back(slope: Tensor, hidden: int) -> _Plan | None:
    return _plan(*_place(slope), hidden, transposed=False, epilogue=_EPILOGUE_DGELU)


def _place(x: Tensor) -> tuple[torch.device, torch.dtype, int, int]:
    """Device, precision, rows and columns.  x: # (…, columns)"""
    return x.device, x.dtype, x.numel() // x.shape[-1], x.shape[-1]


def _multiply(
    plan: _Plan | None,
    weight: Tensor,
    x: Tensor,
    out: Tensor,
    before: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    library = _library()
    assert plan is not None
    one, kept, place = c_float(1.0), c_float(plan.added), c_void_p(out.data_ptr())

    def multiply(kernel: _Heuristic) -> None:
        work = torch.empty(kernel.workspace, dtype=torch.uint8, device=x.device)
        status = library.cublasLtMatmul(
            _handle(x.device), plan.description, byref(one),
            c_void_p(weight.data_ptr()), plan.first, c_void_p(x.data_ptr()), plan.second, byref(kept),
            place, plan.out, place, plan.out, byref(kernel.algorithm),
            c_void_p(work.data_ptr()), c_size_t(len(work)), c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        _checked(status)

    with plan.turn, torch.cuda.device(x.device):
        if before is not None:
            _describe(library, plan.description, _DESC_AUX_POINTER, c_void_p(before.data_ptr()))
        if bias is not None:
            _describe(library, plan.description, _DESC_BIAS_POINTER, c_void_p(bias.data_ptr()))
        if len(plan.kernels) > 1 and not torch.cuda.is_current_stream_capturing():
            start = out.clone() if plan.added else None
            plan.kernels = [_fastest(plan.kernels, multiply, [out] if before is None else [out, before], start)]
            if start is not None:
                out.copy_(start)
        multiply(plan.kernels[0])


def _fastest(
    kernels: list[_Heuristic], multiply: Callable[[_Heuristic], None], made: list[Tensor], start: Tensor | None
) -> _Heuristic:
    """The fastest of those that make the same numbers as the first, added to `start` if there is one."""
    found = []
    for kernel in kernels:
        if start is not None:
            made[0].copy_(start)
        multiply(kernel)
        found.append([int(each.view(torch.int64).sum()) for each in made])
    same = [kernel for kernel, sums in zip(kernels, found, strict=True) if sums == found[0]]
    # In turn, since a device that gets warm slows down.
    rounds = [[_seconds(multiply, kernel) for kernel in same] for _ in range(_SAMPLES)]
    seconds = [statistics.median(each) for each in zip(*rounds, strict=True)]
    return same[seconds.index(min(seconds))]


def _seconds(multiply: Callable[[_Heuristic], None], kernel: _Heuristic) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_CALLS):
        multiply(kernel)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


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
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    inner: int,
    size: int,
    *,
    transposed: bool,
    epilogue: int,
    added: bool = False,
) -> _Plan | None:
    """How (rows, size) comes about; None if the library has no kernel for it.

    The library counts columns first: to it a matrix as PyTorch lays it out is its own transpose, and what comes out
    has `size` rows.
    """
    library = _library()
    if library is None:
        return None
    kind = c_int(_TYPES[dtype])
    description, preference = c_void_p(), c_void_p()
    _checked(library.cublasLtMatmulDescCreate(byref(description), c_int(_COMPUTE_32F), c_int(_R_32F)))
    _describe(library, description, _DESC_EPILOGUE, c_uint32(epilogue))
    _describe(library, description, _DESC_TRANS_A, c_int32(transposed))
    # The library takes from these only how they are aligned.
    if epilogue in _BENDING:
        _describe(library, description, _DESC_AUX_LD, c_int64(size))
        _describe(library, description, _DESC_AUX_POINTER, c_void_p(_ALIGNMENT))
    if epilogue & _EPILOGUE_BIAS:
        _describe(library, description, _DESC_BIAS_POINTER, c_void_p(_ALIGNMENT))
    sizes = (inner, size) if transposed else (size, inner), (inner, rows), (size, rows)
    first, second, out = (_layout(library, kind, *each) for each in sizes)
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
    return _Plan(description, first, second, out, added, kernels) if kernels else None


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
