"""Linear layers for the few rows of a decode step, with packed float32 or int8 weights, compiled into the kernels.

A library's GEMM costs tens of microseconds before it starts, more than many products of a decode step take. Here it is
an ordinary loop around a micro-kernel: a tile of up to `TILE_ROWS` rows × `TILE_COLUMNS` output columns, whose sums
stay
in registers while the weights stream by once. Only the tile is written by hand, in LLVM IR, since no compiler finds it
by itself. Weights are packed in the order in which tiles read them.

int8 weights have one scale per output column, int8 activations one per row (dynamic quantization). Products are summed
exactly, in int32, so a row gets the same bits alone and in any batch. CPUs with VNNI multiply four pairs of bytes at
once; on others the result is the same, and slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from regard.kernels.cpu.jit import Function, jit
from regard.kernels.dispatch import cpu_features, has_vnni

_LANES = 16 if "+avx512f" in cpu_features() else 8 if "+avx2" in cpu_features() else 4
"""Numbers in a SIMD register."""
_REGISTERS = 2 if _LANES == 8 else 4
"""Registers side by side in a tile: AVX2 has only half as many as others."""
TILE_COLUMNS = _LANES * _REGISTERS
TILE_ROWS = 5
"""Rows of the tallest tile: five beams read the weights once. More rows go through in fours, which is fastest."""

Array = NDArray[Any]
_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_INT32S, _FLOATS = ir.VectorType(_INT32, _LANES), ir.VectorType(_FLOAT, _LANES)
_ZERO, _LOWEST, _ZERO_POINT = np.float32(0), np.float32(-3.4e38), np.float32(128.5)
_ABS_MASK = np.int32(0x7FFFFFFF)


def pack_float32(weight: Array, bias: Array) -> tuple[Array, Array]:
    """Weights in tile order # (blocks, width, TILE_COLUMNS) and biases # (blocks · TILE_COLUMNS,), padded with zeros.

    weight: # (size, width); bias: # (size,)
    """
    padded = _pad_rows(weight)
    return np.ascontiguousarray(padded.reshape(-1, TILE_COLUMNS, weight.shape[1]).transpose(0, 2, 1)), _pad_rows(bias)


def quantize_weight(weight: Array) -> tuple[Array, Array]:
    """Weights as int8 from -127 to 127, and the scale of each row.  weight: # (size, width)"""
    maximum = np.abs(weight).max(axis=1)
    scale = np.where(maximum > 0, maximum, 1).astype(np.float32) / np.float32(127)
    return np.rint(weight / scale[:, None]).astype(np.int8), scale


def pack_int8(weight: Array, bias: Array) -> tuple[Array, Array, Array, Array]:
    """The same in int8: weights # (blocks, width / 4, TILE_COLUMNS, 4), initial sums, scales and biases.

    Activations are stored as uint8 with a zero point of 128, as VNNI requires. The initial sums cancel what that adds.
    """
    quantized, scale = quantize_weight(weight)
    quads = -(-weight.shape[1] // 4)
    padded = np.pad(_pad_rows(quantized), ((0, 0), (0, 4 * quads - weight.shape[1])))
    packed = np.ascontiguousarray(padded.reshape(-1, TILE_COLUMNS, quads, 4).transpose(0, 2, 1, 3))
    initial = -128 * quantized.sum(axis=1, dtype=np.int32)
    return packed, _pad_rows(initial), _pad_rows(scale), _pad_rows(bias)


def _pad_rows(array: Array) -> Array:
    """Zeros after the last row, up to a multiple of TILE_COLUMNS."""
    return np.pad(array, [(0, -len(array) % TILE_COLUMNS)] + [(0, 0)] * (array.ndim - 1))


def packed_linear(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> None:
    """out = x Wᵀ + b for a few rows, or out += with `add`, or its ReLU. To be called from other kernels.

    x: # (rows, width); out: # (rows, size)
    weights: the packed weights and biases of all layers, in int8 with initial sums and scales between them
    """
    raise NotImplementedError


def _packed_linear(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> Function:
    def float32(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> None:
        gemm_float32(x, weights[0][layer], weights[1][layer], out, add, relu)

    def int8(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> None:
        _gemm_int8(x, weights[0][layer], weights[1][layer], weights[2][layer], weights[3][layer], out, add, relu)

    return float32 if len(weights) == 2 else int8


overload(packed_linear)(_packed_linear)


@jit
def run_packed_linear(x: Any, weights: Any, layer: Any, out: Any, add: Any, relu: Any) -> None:
    """`packed_linear`, to be called from Python."""
    packed_linear(x, weights, layer, out, add, relu)


def make_tile(rows: int, *, int8: bool, vnni: bool = has_vnni()) -> Function:
    """The micro-kernel for a tile of so many rows, as a function that is compiled into the kernels that call it.

    Its arguments are addresses and strides in bytes: of the first row of x and its stride; of the block's weights and
    how many steps there are (a step is one float of each row, or four bytes); of the block's initial sums, scales and
    biases; of the rows' scales; of the output and its stride. Then whether to add to the output, and the lower bound of
    the output if not.
    """

    def typed(
        context: Any,
        x: Any,
        stride: Any,
        weight: Any,
        steps: Any,
        initial: Any,
        scale: Any,
        bias: Any,
        row_scales: Any,
        out: Any,
        out_stride: Any,
        add: Any,
        minimum: Any,
    ) -> Any:
        return types.void(*[types.intp] * 11, types.float32), build

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, stride, weight, steps, initial, scale, bias, row_scales, out, out_stride, add, minimum = args
        vector_type, scalar_type = (_INT32S, _INT32) if int8 else (_FLOATS, _FLOAT)
        multiply_add = (_multiply_add_vnni if vnni else _multiply_add_int8) if int8 else _multiply_add_float32
        offsets = [4 * _LANES * register for register in range(_REGISTERS)]
        row_starts = [builder.add(x, builder.mul(stride, _INT64(row))) for row in range(rows)]
        first_sums = [_load(builder, initial if int8 else bias, offset, vector_type) for offset in offsets]
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(_INT64)
        step.add_incoming(_INT64(0), before)
        sums = [builder.phi(vector_type) for _ in range(rows * _REGISTERS)]
        weight_address = builder.add(weight, builder.mul(step, _INT64(4 * TILE_COLUMNS)))
        columns = [_load(builder, weight_address, offset, vector_type) for offset in offsets]
        new_sums = []
        for row, start in enumerate(row_starts):
            value = _load(builder, builder.add(start, builder.mul(step, _INT64(4))), 0, scalar_type)
            new_sums += [
                multiply_add(builder, value, column, sums[row * _REGISTERS + register])
                for register, column in enumerate(columns)
            ]
        next_step = builder.add(step, _INT64(1))
        step.add_incoming(next_step, loop)
        for i, (old, new) in enumerate(zip(sums, new_sums, strict=True)):
            old.add_incoming(first_sums[i % _REGISTERS], before)
            old.add_incoming(new, loop)
        builder.cbranch(builder.icmp_signed("<", next_step, steps), loop, after)
        builder.position_at_end(after)
        if int8:
            new_sums = _dequantize(builder, new_sums, scale, bias, row_scales)
        out_rows = [builder.add(out, builder.mul(out_stride, _INT64(row))) for row in range(rows)]
        targets = [
            builder.inttoptr(builder.add(out_row, _INT64(offset)), _FLOATS.as_pointer())
            for out_row in out_rows
            for offset in offsets
        ]
        with builder.if_else(builder.icmp_signed("!=", add, _INT64(0))) as (adding, setting):
            with adding:
                for target, value in zip(targets, new_sums, strict=True):
                    old = builder.load(target)
                    old.align = 4
                    builder.store(builder.fadd(old, value), target).align = 4
            with setting:
                low = _broadcast(builder, minimum, _FLOATS)
                for target, value in zip(targets, new_sums, strict=True):
                    clamped = builder.select(builder.fcmp_unordered(">", value, low), value, low)
                    builder.store(clamped, target).align = 4
        return context.get_dummy_value()

    return cast(Function, intrinsic(typed))


def _dequantize(builder: Any, sums: Sequence[Any], scale: Any, bias: Any, row_scales: Any) -> list[Any]:
    """int32 sums as floats: times the scales of the row and of the column, plus the bias."""
    fma, values = _llvm_intrinsic(builder, f"llvm.fmuladd.v{_LANES}f32", _FLOATS), []
    scales, biases = (
        [_load(builder, address, 4 * _LANES * register, _FLOATS) for register in range(_REGISTERS)]
        for address in (scale, bias)
    )
    for i, total in enumerate(sums):
        row, register = divmod(i, _REGISTERS)
        row_scale = _broadcast(builder, _load(builder, row_scales, 4 * row, _FLOAT), _FLOATS)
        factor = builder.fmul(row_scale, scales[register])
        values.append(builder.call(fma, [builder.sitofp(total, _FLOATS), factor, biases[register]]))
    return values


def _load(builder: Any, address: Any, offset: int, value_type: Any) -> Any:
    value = builder.load(builder.inttoptr(builder.add(address, _INT64(offset)), value_type.as_pointer()))
    value.align = 1
    return value


def _broadcast(builder: Any, value: Any, vector_type: Any) -> Any:
    """One number in all lanes of a register."""
    undefined = ir.Constant(vector_type, ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(undefined, value, _INT32(0)), undefined, ir.Constant(_INT32S, [0] * _LANES)
    )


def _multiply_add_float32(builder: Any, value: Any, column: Any, total: Any) -> Any:
    function = _llvm_intrinsic(builder, f"llvm.fmuladd.v{_LANES}f32", _FLOATS)
    return builder.call(function, [_broadcast(builder, value, _FLOATS), column, total])


def _multiply_add_vnni(builder: Any, value: Any, column: Any, total: Any) -> Any:
    function = _llvm_intrinsic(builder, f"llvm.x86.avx512.vpdpbusd.{32 * _LANES}", _INT32S)
    return builder.call(function, [total, _broadcast(builder, value, _INT32S), column])


def _multiply_add_int8(builder: Any, value: Any, column: Any, total: Any) -> Any:
    """The same as VNNI's instruction, byte by byte."""
    for byte in range(4):
        activation = builder.and_(builder.lshr(value, _INT32(8 * byte)), _INT32(255))
        shifted = builder.shl(column, ir.Constant(_INT32S, [24 - 8 * byte] * _LANES))
        weight = builder.ashr(shifted, ir.Constant(_INT32S, [24] * _LANES))
        total = builder.add(total, builder.mul(_broadcast(builder, activation, _INT32S), weight))
    return total


def _llvm_intrinsic(builder: Any, name: str, vector_type: Any) -> Any:
    """One of LLVM's functions of three vectors."""
    declared = builder.module.globals.get(name)
    return declared or ir.Function(builder.module, ir.FunctionType(vector_type, [vector_type] * 3), name)


_float32_1, _float32_2, _float32_3, _float32_4, _float32_5 = (
    make_tile(rows, int8=False) for rows in range(1, TILE_ROWS + 1)
)
_int8_1, _int8_2, _int8_3, _int8_4, _int8_5 = (make_tile(rows, int8=True) for rows in range(1, TILE_ROWS + 1))


@jit
def gemm_float32(x: Any, packed: Any, bias: Any, out: Any, add: Any, relu: Any) -> None:
    """packed: # (blocks, width, TILE_COLUMNS); bias: # (blocks · TILE_COLUMNS,)"""
    rows, steps, stride, out_stride = x.shape[0], packed.shape[1], x.strides[0], out.strides[0]
    minimum = _ZERO if relu else _LOWEST
    tile = np.empty((TILE_ROWS, TILE_COLUMNS), np.float32)
    for block in range(packed.shape[0]):
        weight, column, row = packed[block].ctypes.data, block * TILE_COLUMNS, 0
        b, columns = bias.ctypes.data + 4 * column, min(TILE_COLUMNS, out.shape[1] - column)
        while row < rows:
            a, height = x.ctypes.data + row * stride, rows - row if rows - row <= TILE_ROWS else 4
            o, o_stride, adds = out.ctypes.data + row * out_stride + 4 * column, out_stride, 1 if add else 0
            if columns < TILE_COLUMNS:  # the last block would write beyond the row
                o, o_stride, adds = tile.ctypes.data, 4 * TILE_COLUMNS, 0
            if height == 4:
                _float32_4(a, stride, weight, steps, 0, 0, b, 0, o, o_stride, adds, minimum)
            elif height == 1:
                _float32_1(a, stride, weight, steps, 0, 0, b, 0, o, o_stride, adds, minimum)
            elif height == 5:
                _float32_5(a, stride, weight, steps, 0, 0, b, 0, o, o_stride, adds, minimum)
            elif height == 2:
                _float32_2(a, stride, weight, steps, 0, 0, b, 0, o, o_stride, adds, minimum)
            else:
                _float32_3(a, stride, weight, steps, 0, 0, b, 0, o, o_stride, adds, minimum)
            if columns < TILE_COLUMNS:
                _copy_tile(tile, out[row : row + height], column, add)
            row += height


@jit
def _gemm_int8(x: Any, packed: Any, initial: Any, scale: Any, bias: Any, out: Any, add: Any, relu: Any) -> None:
    """packed: # (blocks, width / 4, TILE_COLUMNS, 4), int8; initial (int32), scale, bias: # (blocks · TILE_COLUMNS,)"""
    rows, steps, out_stride = x.shape[0], packed.shape[1], out.strides[0]
    stride, minimum = 4 * steps, _ZERO if relu else _LOWEST
    quantized, row_scales = np.empty((rows, stride), np.uint8), np.empty(rows, np.float32)
    quantize_rows(x, quantized, row_scales)
    tile = np.empty((TILE_ROWS, TILE_COLUMNS), np.float32)
    for block in range(packed.shape[0]):
        weight, column, row = packed[block].ctypes.data, block * TILE_COLUMNS, 0
        i, s, b = initial.ctypes.data + 4 * column, scale.ctypes.data + 4 * column, bias.ctypes.data + 4 * column
        columns = min(TILE_COLUMNS, out.shape[1] - column)
        while row < rows:
            a, r = quantized.ctypes.data + row * stride, row_scales.ctypes.data + 4 * row
            height = rows - row if rows - row <= TILE_ROWS else 4
            o, o_stride, adds = out.ctypes.data + row * out_stride + 4 * column, out_stride, 1 if add else 0
            if columns < TILE_COLUMNS:
                o, o_stride, adds = tile.ctypes.data, 4 * TILE_COLUMNS, 0
            if height == 4:
                _int8_4(a, stride, weight, steps, i, s, b, r, o, o_stride, adds, minimum)
            elif height == 1:
                _int8_1(a, stride, weight, steps, i, s, b, r, o, o_stride, adds, minimum)
            elif height == 5:
                _int8_5(a, stride, weight, steps, i, s, b, r, o, o_stride, adds, minimum)
            elif height == 2:
                _int8_2(a, stride, weight, steps, i, s, b, r, o, o_stride, adds, minimum)
            else:
                _int8_3(a, stride, weight, steps, i, s, b, r, o, o_stride, adds, minimum)
            if columns < TILE_COLUMNS:
                _copy_tile(tile, out[row : row + height], column, add)
            row += height


@jit
def _copy_tile(tile: Any, out: Any, column: Any, add: Any) -> None:
    """Copy the columns that exist from a tile.  tile: # (TILE_ROWS, TILE_COLUMNS); out: # (rows of the tile, size)"""
    for row in range(out.shape[0]):
        for i in range(out.shape[1] - column):
            out[row, column + i] = tile[row, i] + (out[row, column + i] if add else _ZERO)


@jit
def quantize_rows(x: Any, quantized: Any, scales: Any) -> None:
    """Rows as uint8 from 1 to 255 with a zero point of 128, and the scale of each.

    x: # (rows, width); quantized: # (rows, width or more), uint8; scales: # (rows,)
    """
    width = x.shape[1]
    for row in range(x.shape[0]):
        bits, max_bits = x[row].view(np.int32), np.int32(0)  # without their sign, bits order as the numbers do
        for i in range(width):
            max_bits = max(max_bits, bits[i] & _ABS_MASK)
        maximum = np.int32(max_bits).view(np.float32)
        scales[row] = maximum / np.float32(127)
        inverse = np.float32(127) / maximum if maximum > _ZERO else _ZERO
        for i in range(width):
            quantized[row, i] = np.uint8(np.int32(x[row, i] * inverse + _ZERO_POINT))
        for i in range(width, quantized.shape[1]):
            quantized[row, i] = np.uint8(128)
