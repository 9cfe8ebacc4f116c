"""cuBLASLt through ctypes: plans for products of some size, and their launch."""

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

# The names are those of cublasLt.h, shortened.
_COMPUTE_32F, _R_32F = 68, 0
TYPES = {torch.bfloat16: 14}
_DESC_TRANS_A, _DESC_EPILOGUE, _DESC_BIAS_POINTER, _DESC_AUX_POINTER, _DESC_AUX_LD = 3, 7, 8, 11, 12
_PREFERENCE_WORKSPACE, _PREFERENCE_ALIGNMENTS = 1, (5, 6, 7, 8)
EPILOGUE_NONE, EPILOGUE_BIAS, EPILOGUE_GELU_AUX, EPILOGUE_DGELU = 1, 4, 160, 192
_GELU_EPILOGUES = (EPILOGUE_GELU_AUX, EPILOGUE_GELU_AUX | EPILOGUE_BIAS, EPILOGUE_DGELU)
ALIGNMENT = 16
"""Every matrix begins at a multiple of so many bytes."""
_MAX_WORKSPACE = 32 * 2**20
"""Bytes of workspace, for products that cannot do without."""
_LARGE, _MAX_KERNELS = 1 << 34, 8
"""Multiplications from which on it pays to time the kernels of a product, and how many of them."""


class Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@dataclass
class Plan:
    """All that a product of some size needs, except the addresses of its matrices."""

    description: c_void_p
    a_layout: c_void_p
    b_layout: c_void_p
    out_layout: c_void_p
    size: int
    """Columns of the output."""
    work: int
    """Multiplications."""
    accumulate: bool
    """Whether the product is added to the output."""
    kernels: list[Heuristic]
    """Those that the library offers. Once they were tried, the one to use, or none if PyTorch's is to be used."""
    tried: bool = False
    lock: Lock = field(default_factory=Lock)
    """Held during a launch, since the description also holds the addresses of some matrices."""

    @property
    def large(self) -> bool:
        """Whether it pays to time the kernels."""
        return self.work >= _LARGE


def launch(
    plan: Plan,
    kernel: Heuristic,
    weight: Tensor,
    x: Tensor,
    out: Tensor,
    pre_activation: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    library = _library()
    alpha, beta, out_pointer = c_float(1.0), c_float(plan.accumulate), c_void_p(out.data_ptr())
    with plan.lock, torch.cuda.device(x.device):
        workspace = torch.empty(kernel.workspace, dtype=torch.uint8, device=x.device)
        if pre_activation is not None:
            _set_attribute(library, plan.description, _DESC_AUX_POINTER, c_void_p(pre_activation.data_ptr()))
        if bias is not None:
            _set_attribute(library, plan.description, _DESC_BIAS_POINTER, c_void_p(bias.data_ptr()))
        status = library.cublasLtMatmul(
            _handle(x.device), plan.description, byref(alpha),
            c_void_p(weight.data_ptr()), plan.a_layout, c_void_p(x.data_ptr()), plan.b_layout, byref(beta),
            out_pointer, plan.out_layout, out_pointer, plan.out_layout, byref(kernel.algorithm),
            c_void_p(workspace.data_ptr()), c_size_t(len(workspace)),
            c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip
        _check(status)


@cache
def _library() -> Any:
    """cuBLASLt as PyTorch has loaded it; None if there is none."""
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
        _check(_library().cublasLtCreate(byref(handle)))
    return handle


@cache
def make_plan(
    device: torch.device,
    dtype: torch.dtype,
    rows: int,
    inner: int,
    size: int,
    *,
    transposed: bool,
    epilogue: int,
    accumulate: bool = False,
) -> Plan | None:
    """The plan for an output of (rows, size); None if the library has no kernel for it.

    The library is column-major: to it a matrix of PyTorch's is its transpose, and the output has `size` rows.
    """
    library = _library()
    if library is None:
        return None
    data_type = c_int(TYPES[dtype])
    description, preference = c_void_p(), c_void_p()
    _check(library.cublasLtMatmulDescCreate(byref(description), c_int(_COMPUTE_32F), c_int(_R_32F)))
    _set_attribute(library, description, _DESC_EPILOGUE, c_uint32(epilogue))
    _set_attribute(library, description, _DESC_TRANS_A, c_int32(transposed))
    # Of these pointers the library uses only the alignment.
    if epilogue in _GELU_EPILOGUES:
        _set_attribute(library, description, _DESC_AUX_LD, c_int64(size))
        _set_attribute(library, description, _DESC_AUX_POINTER, c_void_p(ALIGNMENT))
    if epilogue & EPILOGUE_BIAS:
        _set_attribute(library, description, _DESC_BIAS_POINTER, c_void_p(ALIGNMENT))
    sizes = (inner, size) if transposed else (size, inner), (inner, rows), (size, rows)
    a_layout, b_layout, out_layout = (_layout(library, data_type, *each) for each in sizes)
    _check(library.cublasLtMatmulPreferenceCreate(byref(preference)))
    # Without a workspace if possible; for GELU's derivative such kernels exist too, but they are very slow.
    settings = [
        (_PREFERENCE_WORKSPACE, c_uint64(_MAX_WORKSPACE if epilogue == EPILOGUE_DGELU else 0)),
        *((each, c_uint32(ALIGNMENT)) for each in _PREFERENCE_ALIGNMENTS),
    ]
    for setting, value in settings:
        _check(library.cublasLtMatmulPreferenceSetAttribute(preference, setting, byref(value), c_size_t(sizeof(value))))
    work = rows * inner * size
    requested = _MAX_KERNELS if work >= _LARGE else 1
    found, count = (Heuristic * requested)(), c_int()
    status = library.cublasLtMatmulAlgoGetHeuristic(
        _handle(device), description, a_layout, b_layout, out_layout, out_layout, preference,
        c_int(requested), found, byref(count),
    )  # fmt: skip
    library.cublasLtMatmulPreferenceDestroy(preference)
    kernels = [] if status else [each for each in found[: count.value] if not each.state]
    if not kernels:
        return None
    return Plan(description, a_layout, b_layout, out_layout, size, work, accumulate, kernels)


def _layout(library: Any, data_type: c_int, rows: int, columns: int) -> c_void_p:
    layout = c_void_p()
    _check(
        library.cublasLtMatrixLayoutCreate(byref(layout), data_type, c_uint64(rows), c_uint64(columns), c_int64(rows))
    )
    return layout


def _set_attribute(library: Any, description: c_void_p, attribute: int, value: Any) -> None:
    _check(library.cublasLtMatmulDescSetAttribute(description, c_int(attribute), byref(value), c_size_t(sizeof(value))))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt returned status {status}.")
