"""Linear layers with packed weights equal NumPy in float32, and quantized arithmetic in int8."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba")

from numba import njit

from regard.kernels.cpu import packed_gemm

pytestmark = pytest.mark.start_early(12)

Array = NDArray[Any]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 9, 23])
@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_float32_equals_numpy(rows: int, size: int) -> None:
    rng = np.random.default_rng(rows + size)
    shapes = ((rows, 23), (size, 23), size, (rows, size))
    x, weight, bias, out = (rng.standard_normal(shape).astype("f") for shape in shapes)
    weights = tuple(array[None] for array in packed_gemm.pack_float32(weight, bias))
    expected = x @ weight.T + bias
    added = out + expected
    packed_gemm.run_packed_linear(x, weights, 0, out, True, False)
    assert np.allclose(out, added, atol=1e-5)
    packed_gemm.run_packed_linear(x, weights, 0, out, False, True)
    assert np.allclose(out, np.maximum(expected, 0), atol=1e-5)
    packed_gemm.run_packed_linear(x, weights, 0, out, False, False)
    assert np.allclose(out, expected, atol=1e-5)


def quantize(x: Array) -> tuple[Array, Array]:
    """Rows quantized to integers from -127 to 127, and their scales."""
    maximum = np.abs(x).max(axis=1, keepdims=True)
    safe = np.where(maximum > 0, maximum, 1)
    return np.floor(x * (np.float32(127) / safe) + np.float32(0.5)).astype(np.int64), maximum / np.float32(127)


def int8_linear(x: Array, weight: Array, bias: Array, out: Array, *, add: bool = False, relu: bool = False) -> None:
    weights = tuple(array[None] for array in packed_gemm.pack_int8(weight, bias))
    packed_gemm.run_packed_linear(x, weights, 0, out, add, relu)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 9, 23])
@pytest.mark.parametrize(("size", "width"), [(1, 4), (7, 23), (64, 32), (200, 64)])
def test_int8_equals_the_product_of_quantized_numbers(rows: int, size: int, width: int) -> None:
    rng = np.random.default_rng(rows + size)
    shapes = ((rows, width), (size, width), size, (rows, size))
    x, weight, bias, old = (rng.standard_normal(shape).astype("f") for shape in shapes)
    (activations, row_scales), (weights, scales) = quantize(x), packed_gemm.quantize_weight(weight)
    exact = activations @ weights.T.astype(np.int64) * (row_scales * scales) + bias
    plain, positive, added = np.empty_like(old), np.empty_like(old), old.copy()
    int8_linear(x, weight, bias, plain)
    int8_linear(x, weight, bias, positive, relu=True)
    int8_linear(x, weight, bias, added, add=True)
    assert np.allclose(plain, exact, rtol=1e-5, atol=1e-5)
    assert np.allclose(positive, np.maximum(exact, 0), rtol=1e-5, atol=1e-5)
    assert np.allclose(added, old + exact, rtol=1e-5, atol=1e-5)


def test_int8_sums_do_not_overflow() -> None:
    x, weight = np.full((4, 4096), 3.0, "f"), np.full((3, 4096), -2.0, "f")
    out = np.zeros((4, 3), "f")
    int8_linear(x, weight, np.zeros(3, "f"), out)
    assert np.allclose(out, -6 * 4096)


def test_zeros_give_the_bias() -> None:
    out = np.ones((2, 3), "f")
    bias = np.arange(3, dtype="f")
    int8_linear(np.zeros((2, 8), "f"), np.ones((3, 8), "f"), bias, out)
    assert np.array_equal(out, np.stack((bias, bias)))
    int8_linear(np.ones((2, 8), "f"), np.zeros((3, 8), "f"), bias, out)
    assert np.array_equal(out, np.stack((bias, bias)))


def test_quantization_error_is_at_most_half_a_step() -> None:
    x = np.random.default_rng(1).standard_normal((9, 50)).astype("f")
    quantized, scales = np.zeros((9, 52), np.uint8), np.zeros(9, "f")
    packed_gemm.quantize_rows(x, quantized, scales)
    restored = (quantized[:, :50].astype(np.int64) - 128) * scales[:, None]
    assert np.all(np.abs(restored - x) <= 0.501 * scales[:, None])
    assert np.all(quantized[:, 50:] == 128)
    assert np.array_equal(np.abs(quantized[:, :50].astype(np.int64) - 128).max(axis=1), np.full(9, 127))


def test_cpus_without_vnni_compute_the_same_sums() -> None:
    tile = packed_gemm.make_tile(2, int8=True, vnni=False)

    @njit
    def run(x: Any, packed: Any, initial: Any, scale: Any, bias: Any, row_scales: Any, out: Any) -> None:
        scales = (initial.ctypes.data, scale.ctypes.data, bias.ctypes.data, row_scales.ctypes.data)
        inputs = (x.ctypes.data, x.strides[0], packed.ctypes.data, packed.shape[0])
        tile(*inputs, *scales, out.ctypes.data, out.strides[0], 0, np.float32(-1e9))

    rng, columns = np.random.default_rng(2), packed_gemm.TILE_COLUMNS
    x = rng.standard_normal((2, 24)).astype("f")
    weight, bias = (rng.standard_normal(shape).astype("f") for shape in ((columns, 24), 3))
    bias = np.resize(bias, columns)
    quantized, row_scales = np.zeros((2, 24), np.uint8), np.zeros(2, "f")
    packed_gemm.quantize_rows(x, quantized, row_scales)
    packed, *scales = packed_gemm.pack_int8(weight, bias)
    actual, expected = np.zeros((2, columns), "f"), np.zeros((2, columns), "f")
    run(quantized, packed[0], *scales, row_scales, actual)
    int8_linear(x, weight, bias, expected)
    assert np.array_equal(actual, expected)
