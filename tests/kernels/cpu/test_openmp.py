"""A kernel is bit-identical in every process, regardless of what was compiled before."""

import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

from regard.kernels.cpu.add_norm import dropout_add_norm_backward_kernel, dropout_add_norm_kernel, dropout_kernel
from regard.kernels.cpu.attention import attention_backward_kernel, attention_kernel
from regard.kernels.cpu.cross_entropy import cross_entropy_kernel
from regard.kernels.cpu.linear import relu_backward_kernel

pytestmark = pytest.mark.start_early(13)

KERNELS = {
    "dropout_kernel": dropout_kernel,
    "relu_backward_kernel": relu_backward_kernel,
    "dropout_add_norm_kernel": dropout_add_norm_kernel,
    "dropout_add_norm_backward_kernel": dropout_add_norm_backward_kernel,
    "attention_kernel": attention_kernel,
    "attention_backward_kernel": attention_backward_kernel,
    "cross_entropy_kernel": cross_entropy_kernel,
}
_NAME = re.compile(rb"_ZN6regard\w+")


def machine_code(cached: bytes) -> bytes:
    """The object file in a kernel's cache file, up to the end of its section table."""
    begin = cached.index(b"\x7fELF")
    (sections,) = struct.unpack_from("<Q", cached, begin + 0x28)
    size, count = struct.unpack_from("<HH", cached, begin + 0x3A)
    return cached[begin : begin + sections + size * count]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other object files")
@pytest.mark.parametrize("name", KERNELS)
def test_all_functions_are_inlined_into_a_kernel(name: str) -> None:
    """A process uses the first of several copies of a function, and two copies may order their sums differently."""
    cache: Any = KERNELS[name]._cache
    (file,) = Path(cache.cache_path).glob(f"{cache.name}-*.nbc")
    names = {each.decode() for each in _NAME.findall(machine_code(file.read_bytes()))}
    assert names, "not even its own name: the file has another format"
    assert all(re.search(rf"\d{name}B\d+v", each) for each in names), names
