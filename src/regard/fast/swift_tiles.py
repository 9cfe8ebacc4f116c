"""Matrix products for the few rows of a step, with float32 or int8 weights, compiled into the kernels that need them.

A library's product costs tens of microseconds before it begins, which is more than many a product of a step takes. Here
it is an ordinary loop around a tile: up to `ROWS` rows times `COLUMNS` output columns, whose sums stay in registers
while the weights stream by once. Only the tile is written by hand, in LLVM's language, since no compiler finds it by
itself. Weights lie in the order in which tiles read them.

int8 weights have a scale for each output column, int8 activations one for each row. Their products are summed exactly,
as whole numbers, so a row gets the same bits alone and in any company. Processors with VNNI multiply four pairs of
bytes at once; on others it is right, and slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import config
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from regard.fast.kernels import Function, compiled

_FEATURES = (get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES).split(",")
"""What the processor has that is compiled for: "+avx2"."""
_LANES = 16 if "+avx512f" in _FEATURES else 8 if "+avx2" in _FEATURES else 4
"""Numbers in a register."""
_ACROSS = 2 if _LANES == 8 else 4
"""Registers side by side in a tile: AVX2 has only half as many as others."""
COLUMNS = _LANES * _ACROSS
ROWS = 5
"""Rows of the highest tile: five beams read weights once. More rows go through in fours, which is the fastest."""
HAS_BYTE_PRODUCTS = ("+avx512vnni" if _LANES == 16 else "+avxvnni") in _FEATURES
"""Whether this processor multiplies bytes faster than floats."""

Array = NDArray[Any]
_WORD, _ADDRESS, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_WORDS, _FLOATS = ir.VectorType(_WORD, _LANES), ir.VectorType(_FLOAT, _LANES)
_ZERO, _LOWEST, _MIDDLE = np.float32(0), np.float32(-3.4e38), np.float32(128.5)
_SIZE = np.int32(0x7FFFFFFF)


def pack_floats(weight: Array, bias: Array) -> tuple[Array, Array]:
    """Weights in the order of tiles # (blocks, width, COLUMNS) and biases # (blocks · COLUMNS,), zeros behind the last.

    weight: # (size, width); bias: # (size,)
    """
    filled = _filled(weight)
    return np.ascontiguousarray(filled.reshape(-1, COLUMNS, weight.shape[1]).transpose(0, 2, 1)), _filled(bias)


def round_weights(weight: Array) -> tuple[Array, Array]:
    """Weights as whole numbers from -127 to 127, and the scale of each row of them.  weight: # (size, width)"""
    most = np.abs(weight).max(axis=1)
    scale = np.where(most > 0, most, 1).astype(np.float32) / np.float32(127)
    return np.rint(weight / scale[:, None]).astype(np.int8), scale


def pack_bytes(weight: Array, bias: Array) -> tuple[Array, Array, Array, Array]:
    """The same in int8: weights # (blocks, width / 4, COLUMNS, 4), where their sums begin, scales and biases.

    Activations are given as 0 to 255 with 128 for zero, as processors want it. Sums begin with what that adds.
    """
    rounded, scale = round_weights(weight)
    quads = -(-weight.shape[1] // 4)
    filled = np.pad(_filled(rounded), ((0, 0), (0, 4 * quads - weight.shape[1])))
    packed = np.ascontiguousarray(filled.reshape(-1, COLUMNS, quads, 4).transpose(0, 2, 1, 3))
    begin = -128 * rounded.sum(axis=1, dtype=np.int32)
    return packed, _filled(begin), _filled(scale), _filled(bias)


def _filled(array: Array) -> Array:
    """Zeros behind the last row, up to whole blocks."""
    return np.pad(array, [(0, -len(array) % COLUMNS)] + [(0, 0)] * (array.ndim - 1))


def multiply(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> None:
    """x Wᵀ + b for a few rows, added to `out` or in its place, or only its positive part. To be called from kernels.

    x: # (rows, width); out: # (rows, size)
    weights: packed ones and biases of all layers, those in int8 with beginnings and scales in between
    """
    raise NotImplementedError


def _chosen(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> Function:
    def floats(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> None:
        multiply_floats(x, weights[0][layer], weights[1][layer], out, add, relu)

    def whole(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> None:
        _multiply_bytes(x, weights[0][layer], weights[1][layer], weights[2][layer], weights[3][layer], out, add, relu)

    return floats if len(weights) == 2 else whole


overload(multiply)(_chosen)


@compiled
def multiply_rows(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> None:
    """`multiply`, to be called from Python."""
    multiply(x, weights, layer, out, add, relu)


def _tile(rows: int, *, whole: bool, native: bool = HAS_BYTE_PRODUCTS) -> Function:
    """A tile of so many rows, as a function that kernels can call, compiled into them.

    It takes addresses: of the first row and how far it is to the next, of the block's weights, how many steps there are
    (a step is one number of each row, or four bytes), of the block's beginnings, scales and biases, of the rows'
    scales, of the output and how far it is to its next row. Then whether to add to what is there, and what the output
    is at least if not.
    """

    def typed(
        context: Any,
        x: Any,
        stride: Any,
        weight: Any,
        steps: Any,
        begin: Any,
        scale: Any,
        bias: Any,
        scales: Any,
        out: Any,
        out_stride: Any,
        add: Any,
        least: Any,
    ) -> Any:
        return types.void(*[types.intp] * 11, types.float32), write

    def write(context: Any, code: Any, signature: Any, arguments: Any) -> Any:
        x, stride, weight, steps, begin, scale, bias, scales, out, out_stride, add, least = arguments
        kind, number = (_WORDS, _WORD) if whole else (_FLOATS, _FLOAT)
        multiply_add = (_bytes_into if native else _bytes_slowly) if whole else _floats_into
        places = [4 * _LANES * across for across in range(_ACROSS)]
        starts = [code.add(x, code.mul(stride, _ADDRESS(row))) for row in range(rows)]
        first = [_load(code, begin if whole else bias, place, kind) for place in places]
        before, loop, behind = code.block, code.append_basic_block(), code.append_basic_block()
        code.branch(loop)
        code.position_at_end(loop)
        step = code.phi(_ADDRESS)
        step.add_incoming(_ADDRESS(0), before)
        held = [code.phi(kind) for _ in range(rows * _ACROSS)]
        here = code.add(weight, code.mul(step, _ADDRESS(4 * COLUMNS)))
        columns = [_load(code, here, place, kind) for place in places]
        made = []
        for row, start in enumerate(starts):
            each = _load(code, code.add(start, code.mul(step, _ADDRESS(4))), 0, number)
            made += [
                multiply_add(code, each, column, held[row * _ACROSS + across]) for across, column in enumerate(columns)
            ]
        following = code.add(step, _ADDRESS(1))
        step.add_incoming(following, loop)
        for place, (old, new) in enumerate(zip(held, made, strict=True)):
            old.add_incoming(first[place % _ACROSS], before)
            old.add_incoming(new, loop)
        code.cbranch(code.icmp_signed("<", following, steps), loop, behind)
        code.position_at_end(behind)
        if whole:
            made = _scaled(code, made, scale, bias, scales)
        ends = [code.add(out, code.mul(out_stride, _ADDRESS(row))) for row in range(rows)]
        targets = [
            code.inttoptr(code.add(end, _ADDRESS(place)), _FLOATS.as_pointer()) for end in ends for place in places
        ]
        with code.if_else(code.icmp_signed("!=", add, _ADDRESS(0))) as (adding, setting):
            with adding:
                for target, value in zip(targets, made, strict=True):
                    old = code.load(target)
                    old.align = 4
                    code.store(code.fadd(old, value), target).align = 4
            with setting:
                low = _everywhere(code, least, _FLOATS)
                for target, value in zip(targets, made, strict=True):
                    code.store(code.select(code.fcmp_unordered(">", value, low), value, low), target).align = 4
        return context.get_dummy_value()

    return cast(Function, intrinsic(typed))


def _scaled(code: Any, sums: Sequence[Any], scale: Any, bias: Any, scales: Any) -> list[Any]:
    """Whole numbers as floats: times the row's and the column's scale, and biases added."""
    fused, values = _declared(code, f"llvm.fmuladd.v{_LANES}f32", _FLOATS), []
    steps, biases = (
        [_load(code, where, 4 * _LANES * across, _FLOATS) for across in range(_ACROSS)] for where in (scale, bias)
    )
    for place, total in enumerate(sums):
        row, across = divmod(place, _ACROSS)
        each = _everywhere(code, _load(code, scales, 4 * row, _FLOAT), _FLOATS)
        values.append(code.call(fused, [code.sitofp(total, _FLOATS), code.fmul(each, steps[across]), biases[across]]))
    return values


def _load(code: Any, address: Any, offset: int, kind: Any) -> Any:
    value = code.load(code.inttoptr(code.add(address, _ADDRESS(offset)), kind.as_pointer()))
    value.align = 1
    return value


def _everywhere(code: Any, value: Any, kind: Any) -> Any:
    """One number in all lanes."""
    nothing = ir.Constant(kind, ir.Undefined)
    return code.shuffle_vector(
        code.insert_element(nothing, value, _WORD(0)), nothing, ir.Constant(_WORDS, [0] * _LANES)
    )


def _floats_into(code: Any, each: Any, column: Any, total: Any) -> Any:
    function = _declared(code, f"llvm.fmuladd.v{_LANES}f32", _FLOATS)
    return code.call(function, [_everywhere(code, each, _FLOATS), column, total])


def _bytes_into(code: Any, each: Any, column: Any, total: Any) -> Any:
    function = _declared(code, f"llvm.x86.avx512.vpdpbusd.{32 * _LANES}", _WORDS)
    return code.call(function, [total, _everywhere(code, each, _WORDS), column])


def _bytes_slowly(code: Any, each: Any, column: Any, total: Any) -> Any:
    for place in range(4):
        own = code.and_(code.lshr(each, _WORD(8 * place)), _WORD(255))
        shifted = code.shl(column, ir.Constant(_WORDS, [24 - 8 * place] * _LANES))
        signed = code.ashr(shifted, ir.Constant(_WORDS, [24] * _LANES))
        total = code.add(total, code.mul(_everywhere(code, own, _WORDS), signed))
    return total


def _declared(code: Any, name: str, kind: Any) -> Any:
    """One of LLVM's own functions of three vectors."""
    found = code.module.globals.get(name)
    return found or ir.Function(code.module, ir.FunctionType(kind, [kind] * 3), name)


_float_1, _float_2, _float_3, _float_4, _float_5 = (_tile(rows, whole=False) for rows in range(1, ROWS + 1))
_bytes_1, _bytes_2, _bytes_3, _bytes_4, _bytes_5 = (_tile(rows, whole=True) for rows in range(1, ROWS + 1))


@compiled
def multiply_floats(x: Any, packed: Any, bias: Any, out: Any, add: Any, relu: Any) -> None:
    """packed: # (blocks, width, COLUMNS); bias: # (blocks · COLUMNS,)"""
    rows, steps, stride, out_stride = x.shape[0], packed.shape[1], x.strides[0], out.strides[0]
    least = _ZERO if relu else _LOWEST
    spare = np.empty((ROWS, COLUMNS), np.float32)
    for block in range(packed.shape[0]):
        weight, first, row = packed[block].ctypes.data, block * COLUMNS, 0
        b, count = bias.ctypes.data + 4 * first, min(COLUMNS, out.shape[1] - first)
        while row < rows:
            a, height = x.ctypes.data + row * stride, rows - row if rows - row <= ROWS else 4
            o, far, adds = out.ctypes.data + row * out_stride + 4 * first, out_stride, 1 if add else 0
            if count < COLUMNS:  # the last block would write too far
                o, far, adds = spare.ctypes.data, 4 * COLUMNS, 0
            if height == 4:
                _float_4(a, stride, weight, steps, 0, 0, b, 0, o, far, adds, least)
            elif height == 1:
                _float_1(a, stride, weight, steps, 0, 0, b, 0, o, far, adds, least)
            elif height == 5:
                _float_5(a, stride, weight, steps, 0, 0, b, 0, o, far, adds, least)
            elif height == 2:
                _float_2(a, stride, weight, steps, 0, 0, b, 0, o, far, adds, least)
            else:
                _float_3(a, stride, weight, steps, 0, 0, b, 0, o, far, adds, least)
            if count < COLUMNS:
                _copy(spare, out[row : row + height], first, add)
            row += height


@compiled
def _multiply_bytes(x: Any, packed: Any, begin: Any, scale: Any, bias: Any, out: Any, add: Any, relu: Any) -> None:
    """packed: # (blocks, width / 4, COLUMNS, 4), int8; begin (int32), scale, bias: # (blocks · COLUMNS,)"""
    rows, steps, out_stride = x.shape[0], packed.shape[1], out.strides[0]
    stride, least = 4 * steps, _ZERO if relu else _LOWEST
    rounded, scales = np.empty((rows, stride), np.uint8), np.empty(rows, np.float32)
    round_rows(x, rounded, scales)
    spare = np.empty((ROWS, COLUMNS), np.float32)
    for block in range(packed.shape[0]):
        weight, first, row = packed[block].ctypes.data, block * COLUMNS, 0
        n, c, b = begin.ctypes.data + 4 * first, scale.ctypes.data + 4 * first, bias.ctypes.data + 4 * first
        count = min(COLUMNS, out.shape[1] - first)
        while row < rows:
            a, r = rounded.ctypes.data + row * stride, scales.ctypes.data + 4 * row
            height = rows - row if rows - row <= ROWS else 4
            o, far, adds = out.ctypes.data + row * out_stride + 4 * first, out_stride, 1 if add else 0
            if count < COLUMNS:
                o, far, adds = spare.ctypes.data, 4 * COLUMNS, 0
            if height == 4:
                _bytes_4(a, stride, weight, steps, n, c, b, r, o, far, adds, least)
            elif height == 1:
                _bytes_1(a, stride, weight, steps, n, c, b, r, o, far, adds, least)
            elif height == 5:
                _bytes_5(a, stride, weight, steps, n, c, b, r, o, far, adds, least)
            elif height == 2:
                _bytes_2(a, stride, weight, steps, n, c, b, r, o, far, adds, least)
            else:
                _bytes_3(a, stride, weight, steps, n, c, b, r, o, far, adds, least)
            if count < COLUMNS:
                _copy(spare, out[row : row + height], first, add)
            row += height


@compiled
def _copy(spare: Any, out: Any, first: Any, add: Any) -> None:
    """What there is of a block into the last columns.  spare: # (ROWS, COLUMNS); out: # (rows of a tile, size)"""
    for row in range(out.shape[0]):
        for i in range(out.shape[1] - first):
            out[row, first + i] = spare[row, i] + (out[row, first + i] if add else _ZERO)


@compiled
def round_rows(x: Any, rounded: Any, scales: Any) -> None:
    """Rows as whole numbers of 1 to 255, 128 for zero, and the scale of each.

    x: # (rows, width); rounded: # (rows, width or some more), uint8; scales: # (rows,)
    """
    width = x.shape[1]
    for row in range(x.shape[0]):
        bits, greatest = x[row].view(np.int32), np.int32(0)  # without their sign, bits are in the order of numbers
        for i in range(width):
            greatest = max(greatest, bits[i] & _SIZE)
        most = np.int32(greatest).view(np.float32)
        scales[row] = most / np.float32(127)
        finer = np.float32(127) / most if most > _ZERO else _ZERO
        for i in range(width):
            rounded[row, i] = np.uint8(np.int32(x[row, i] * finer + _MIDDLE))
        for i in range(width, rounded.shape[1]):
            rounded[row, i] = np.uint8(128)
