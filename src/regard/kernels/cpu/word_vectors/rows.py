"""Operations on a few rows of a large table: scores, updates, means. They are what training word vectors consists of.

Rows are some hundred numbers long, so a loop that the compiler vectorizes and unrolls by itself spends most of its
time on what is left over. Here rows are made of whole vectors (`LANES` numbers, padded with zeros), and what belongs to
all rows of an update stays in registers. It is written in LLVM's own language, as numba has no vectors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""The numbers of a vector. The width of every table must be a multiple of it."""
_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS = ir.VectorType(_FLOAT, LANES)


def padded_width(width: int) -> int:
    """The next multiple of `LANES`."""
    return -(-width // LANES) * LANES


@intrinsic  # type: ignore[untyped-decorator]
def score_rows(typing: Any, table: Any, rows: Any, count: Any, vector: Any, scores: Any) -> Any:
    """scores[t] = table[rows[t]] · vector, for the first `count` rows.

    table: # (rows, width); rows: # (≥ count,), int64; vector: # (width,); scores: # (≥ count,)
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        fma, add = code.function("llvm.fmuladd", 3), code.reduction()
        with code.loop(args[2]) as target:
            row = code.row(0, code.load(1, target))
            total = code.variable(_FLOATS)
            with code.loop(code.vectors(3)) as block:
                product = [code.load_vector(row, block), code.load_vector(code.data(3), block)]
                builder.store(builder.call(fma, [*product, builder.load(total)]), total)
            score = builder.call(add, [_FLOAT(0.0), builder.load(total)], fastmath=("reassoc",))
            builder.store(score, builder.gep(code.data(4), [target]))
        return context.get_dummy_value()

    return types.void(table, rows, types.intp, vector, scores), build


@intrinsic  # type: ignore[untyped-decorator]
def update_rows(typing: Any, table: Any, rows: Any, count: Any, grads: Any, vector: Any, error: Any) -> Any:
    """error = Σ grads[t] · table[rows[t]], and then table[rows[t]] += grads[t] · vector, for the first `count` rows.

    A row that is listed twice is updated after it has been added up for the first time.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        fma = code.function("llvm.fmuladd", 3)
        with code.loop(code.vectors(4)) as block:
            total, values = code.variable(_FLOATS), code.load_vector(code.data(4), block)
            with code.loop(args[2]) as target:
                row, grad = code.row(0, code.load(1, target)), code.broadcast(code.load(3, target))
                old = code.load_vector(row, block)
                builder.store(builder.call(fma, [grad, old, builder.load(total)]), total)
                code.store_vector(builder.call(fma, [grad, values, old]), row, block)
            code.store_vector(builder.load(total), code.data(5), block)
        return context.get_dummy_value()

    return types.void(table, rows, types.intp, grads, vector, error), build


@intrinsic  # type: ignore[untyped-decorator]
def mean_of_rows(typing: Any, table: Any, rows: Any, count: Any, vector: Any) -> Any:
    """vector = the mean of table[rows[t]] over the first `count` rows."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        scale = code.broadcast(builder.fdiv(_FLOAT(1.0), builder.sitofp(args[2], _FLOAT)))
        with code.loop(code.vectors(3)) as block:
            total = code.variable(_FLOATS)
            with code.loop(args[2]) as target:
                row = code.row(0, code.load(1, target))
                builder.store(builder.fadd(builder.load(total), code.load_vector(row, block)), total)
            code.store_vector(builder.fmul(builder.load(total), scale), code.data(3), block)
        return context.get_dummy_value()

    return types.void(table, rows, types.intp, vector), build


@intrinsic  # type: ignore[untyped-decorator]
def add_to_rows(typing: Any, table: Any, rows: Any, count: Any, vector: Any) -> Any:
    """table[rows[t]] += vector, for the first `count` rows."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = _Code(context, builder, signature, args)
        with code.loop(args[2]) as target:
            row = code.row(0, code.load(1, target))
            with code.loop(code.vectors(3)) as block:
                total = builder.fadd(code.load_vector(row, block), code.load_vector(code.data(3), block))
                code.store_vector(total, row, block)
        return context.get_dummy_value()

    return types.void(table, rows, types.intp, vector), build


class _Code:
    """Writes the instructions of a function whose arguments are contiguous arrays and sizes."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self._builder = builder
        self._arrays = {
            number: context.make_array(kind)(context, builder, value)
            for number, (kind, value) in enumerate(zip(signature.args, args, strict=True))
            if isinstance(kind, types.Array)
        }

    def data(self, argument: int) -> Any:
        """The address of an array's first number."""
        return self._arrays[argument].data

    def vectors(self, argument: int) -> Any:
        """How many vectors a row of this width has."""
        size = self._builder.extract_value(self._arrays[argument].shape, 0)
        return self._builder.udiv(size, _INT64(LANES))

    def row(self, argument: int, number: Any) -> Any:
        """The address of a row of a table."""
        width = self._builder.extract_value(self._arrays[argument].shape, 1)
        return self._builder.gep(self.data(argument), [self._builder.mul(number, width)])

    def load(self, argument: int, number: Any) -> Any:
        return self._builder.load(self._builder.gep(self.data(argument), [number]))

    def load_vector(self, address: Any, block: Any) -> Any:
        value = self._builder.load(self._vector_address(address, block))
        value.align = 4
        return value

    def store_vector(self, value: Any, address: Any, block: Any) -> None:
        self._builder.store(value, self._vector_address(address, block)).align = 4

    def variable(self, kind: Any) -> Any:
        """The address of a variable that is 0 now; the compiler keeps it in a register."""
        variable = cgutils.alloca_once(self._builder, kind)
        self._builder.store(ir.Constant(kind, None), variable)
        return variable

    def broadcast(self, value: Any) -> Any:
        """One number in all lanes of a vector."""
        undefined = ir.Constant(_FLOATS, ir.Undefined)
        single = self._builder.insert_element(undefined, value, _INT32(0))
        return self._builder.shuffle_vector(single, undefined, ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES))

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        with cgutils.for_range(self._builder, count, intp=_INT64) as loop:
            yield loop.index

    def function(self, name: str, arguments: int) -> Any:
        """One of LLVM's functions of vectors."""
        return self._declare(f"{name}.v{LANES}f32", ir.FunctionType(_FLOATS, [_FLOATS] * arguments))

    def reduction(self) -> Any:
        """The sum of a number and all lanes of a vector."""
        return self._declare(f"llvm.vector.reduce.fadd.v{LANES}f32", ir.FunctionType(_FLOAT, [_FLOAT, _FLOATS]))

    def _vector_address(self, address: Any, block: Any) -> Any:
        number = self._builder.mul(block, _INT64(LANES))
        return self._builder.bitcast(self._builder.gep(address, [number]), _FLOATS.as_pointer())

    def _declare(self, name: str, kind: Any) -> Any:
        return self._builder.module.globals.get(name) or ir.Function(self._builder.module, kind, name)
