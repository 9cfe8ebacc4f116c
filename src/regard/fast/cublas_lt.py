"""Products by cuBLASLt, by another kernel than PyTorch takes where that is faster, and such as bend what comes out.

PyTorch brings that library along and takes its products from it, but leaves three things out. The library names several
kernels for a size, and the first, which PyTorch takes, need not be the fastest. Where a kernel may have some memory to
work in, the library clears a few bytes of it before every product, and in a recorded pass the device waits for that
longer than for some of the work itself; the same kernels can do without. And it can apply GELU (the one by tanh) while
a product is still in registers and write down what it was before, and on the way back multiply by its slope there,
which saves a feed-forward two trips through memory. So this calls the library itself, through ctypes.

Whatever stands against it (another device or precision, an odd size, no such library) is seen before anything is
computed, and PyTorch does it. Kernels are tried on the first product of a size. One is kept only if it gives the same
bits there as PyTorch's own, by their sum, so that which one wins on a busy device makes no difference to what a step
gives. Products that bend have no such peer, and are held to the first that the library names.
"""

import ctypes
import statistics
from collections.abc import Callable, Sequence
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
"""The most bytes that a product may take to work in, where it cannot do without."""
_SMALL, _LARGE = 1 << 28, 1 << 34
"""Multiplications from which on a product may be taken from here, and those from which on its kernels are timed.
Between them it is taken from here only where it is recorded, since Python is slower to start it than PyTorch."""
_KERNELS, _SAMPLES, _CALLS, _SAMPLE = 8, 5, 4, 1 << 37
"""Kernels that are timed, how often, and products of a sample: at most so many, and so many multiplications."""


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
    size: int
    """Columns of what is made."""
    work: int
    """Multiplications."""
    added: bool
    """Whether it is added to what is there."""
    kernels: list[_Heuristic]
    """Those that the library names. Once they were tried, the one to take, or none if that is PyTorch's."""
    tried: bool = False
    turn: Lock = field(default_factory=Lock)
    """Held by who multiplies, since the description also says where some matrices lie."""

    @property
    def large(self) -> bool:
        """Whether the choice of a kernel pays."""
        return self.work >= _LARGE


Own = Callable[[], Tensor]
"""A product as PyTorch makes it."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias.  x: # (…, width); weight: # (size, width)"""
    plan = _plan_of(x, weight, bias, len(weight), transposed=True)
    return _best(plan, lambda: functional.linear(x, weight, bias), weight, x, None, bias)


def product_back(slope: Tensor, weight: Tensor, onto: Tensor | None = None) -> Tensor:
    """slope · weight; added to what flows back already, if anything does.

    slope: # (rows, size); weight: # (size, width); onto: # (rows, width), which is overwritten
    """
    plan = _plan_of(slope, weight, onto, weight.shape[1], transposed=False, added=onto is not None)
    return _best(
        plan, lambda: slope @ weight if onto is None else onto.addmm_(slope, weight), weight, slope, onto, None
    )


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
    _bent(_bending(x, len(weight), biased=bias is not None), weight, x, bent, before, bias)
    return bent, before


def product_bent_back(slope: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """slope · weight times GELU's slope at `before`.  slope: # (rows, width); weight: # (width, hidden)"""
    back = torch.empty_like(before)
    _bent(_bending_back(slope, weight.shape[1]), weight, slope, back, before)
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


def _plan_of(
    x: Tensor, weight: Tensor, other: Tensor | None, size: int, *, transposed: bool, added: bool = False
) -> _Plan | None:
    """How a product of such matrices comes about here; None where PyTorch's own is as good.

    x: # (…, inner); `other` is its bias or what it is added to
    """
    if x.shape[-1] != weight.shape[transposed] or x.numel() * size < _SMALL:
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


def _best(plan: _Plan | None, own: Own, weight: Tensor, x: Tensor, onto: Tensor | None, bias: Tensor | None) -> Tensor:
    """A product by the kernel to take, which is found by trial on the first of a size."""
    if plan is None:
        return own()
    recorded = torch.cuda.is_current_stream_capturing()

    def multiply(kernel: _Heuristic | None) -> list[Tensor]:
        if kernel is None:
            return [own()]
        out = x.new_empty(*x.shape[:-1], plan.size) if onto is None else onto
        _start(plan, kernel, weight, x, out, bias=bias)
        return [out]

    if not plan.tried and not recorded:
        _try(plan, [None, *plan.kernels], multiply, onto)
    here = plan.tried and bool(plan.kernels) and (plan.large or recorded)
    return multiply(plan.kernels[0] if here else None)[0]


def _bent(
    plan: _Plan | None, weight: Tensor, x: Tensor, out: Tensor, before: Tensor, bias: Tensor | None = None
) -> None:
    """The same of a product that bends, which PyTorch has not."""
    assert plan is not None

    def multiply(kernel: _Heuristic | None) -> list[Tensor]:
        assert kernel is not None
        _start(plan, kernel, weight, x, out, before, bias)
        return [out, before]

    if not plan.tried and not torch.cuda.is_current_stream_capturing():
        _try(plan, plan.kernels, multiply, None)
    multiply(plan.kernels[0])


def _start(
    plan: _Plan,
    kernel: _Heuristic,
    weight: Tensor,
    x: Tensor,
    out: Tensor,
    before: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    library = _library()
    one, kept, place = c_float(1.0), c_float(plan.added), c_void_p(out.data_ptr())
    with plan.turn, torch.cuda.device(x.device):
        work = torch.empty(kernel.workspace, dtype=torch.uint8, device=x.device)
        if before is not None:
            _describe(library, plan.description, _DESC_AUX_POINTER, c_void_p(before.data_ptr()))
        if bias is not None:
            _describe(library, plan.description, _DESC_BIAS_POINTER, c_void_p(bias.data_ptr()))
        status = library.cublasLtMatmul(
            _handle(x.device), plan.description, byref(one),
            c_void_p(weight.data_ptr()), plan.first, c_void_p(x.data_ptr()), plan.second, byref(kept),
            place, plan.out, place, plan.out, byref(kernel.algorithm),
            c_void_p(work.data_ptr()), c_size_t(len(work)), c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        _checked(status)


Multiply = Callable[[_Heuristic | None], list[Tensor]]
"""A product by a kernel, or by PyTorch, and what is made."""


def _try(plan: _Plan, kernels: Sequence[_Heuristic | None], multiply: Multiply, onto: Tensor | None) -> None:
    """Keep the kernel to take: of those that make the same bits as the first, the fastest.

    Where PyTorch is asked to be deterministic nothing is left to a clock: the first of them is kept. PyTorch's own,
    None, is there for its bits; it would be one of the others, after some bytes are cleared.
    """
    start = None if onto is None else onto.clone()
    found = []
    for kernel in kernels:
        if onto is not None and start is not None:
            onto.copy_(start)
        found.append([int(each.view(torch.int64).sum()) for each in multiply(kernel)])
    same = [kernel for kernel, sums in zip(kernels, found, strict=True) if kernel is not None and sums == found[0]]
    if torch.are_deterministic_algorithms_enabled():
        same = same[:1]
    elif len(same) > 1:
        # In turn, since a device that gets warm slows down.
        calls = max(1, min(_CALLS, _SAMPLE // plan.work))
        rounds = [[_seconds(multiply, kernel, calls) for kernel in same] for _ in range(_SAMPLES)]
        seconds = [statistics.median(each) for each in zip(*rounds, strict=True)]
        same = [same[seconds.index(min(seconds))]]
    if onto is not None and start is not None:
        onto.copy_(start)
    plan.kernels, plan.tried = same, True


def _seconds(multiply: Multiply, kernel: _Heuristic, calls: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    multiply(kernel)  # so that the device is at work already when the first of the others comes
    begin.record()
    for _ in range(calls):
        multiply(kernel)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / calls


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
    # Without memory to work in if it can be: GELU's slope has kernels for that too, but very slow ones.
    settings = [
        (_PREFERENCE_WORKSPACE, c_uint64(_WORKSPACE if epilogue == _EPILOGUE_DGELU else 0)),
        *((each, c_uint32(_ALIGNMENT)) for each in _PREFERENCE_ALIGNMENTS),
    ]
    for setting, value in settings:
        _checked(
            library.cublasLtMatmulPreferenceSetAttribute(preference, setting, byref(value), c_size_t(sizeof(value)))
        )
    work = rows * inner * size
    asked = _KERNELS if work >= _LARGE else 1
    found, count = (_Heuristic * asked)(), c_int()
    status = library.cublasLtMatmulAlgoGetHeuristic(
        _handle(device), description, first, second, out, out, preference, c_int(asked), found, byref(count)
    )
    library.cublasLtMatmulPreferenceDestroy(preference)
    kernels = [] if status else [each for each in found[: count.value] if not each.state]
    return _Plan(description, first, second, out, size, work, added, kernels) if kernels else None


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
