"""A kernel computes the same bits in every process, whatever was compiled before it."""

import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

from regard.fast import numba_training
from regard.train import numba_loss

KERNELS = {
    "drop": numba_training.drop,
    "rectified_back": numba_training.rectified_back,
    "join": numba_training.join,
    "join_back": numba_training.join_back,
    "attend": numba_training.attend,
    "attend_back": numba_training.attend_back,
    "judge": numba_loss.judge,
}
_NAME = re.compile(rb"_ZN6regard\w+")


def machine_code(kept: bytes) -> bytes:
    """The object file among all that is kept of a kernel, up to the end of its table of sections."""
    begin = kept.index(b"\x7fELF")
    (sections,) = struct.unpack_from("<Q", kept, begin + 0x28)
    size, count = struct.unpack_from("<HH", kept, begin + 0x3A)
    return kept[begin : begin + sections + size * count]


@pytest.mark.skipif(sys.platform != "linux", reason="object files of other systems are written otherwise")
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_holds_no_function_that_another_copy_could_stand_in_for(name: str) -> None:
    """A process takes the first of several copies of a function, and no two need order their sums alike."""
    kept: Any = KERNELS[name]._cache._impl
    (file,) = Path(kept.locator.get_cache_path()).glob(f"{kept.filename_base}.*.nbc")
    names = {each.decode() for each in _NAME.findall(machine_code(file.read_bytes()))}
    assert names, "not even its own: the file is not what it was"
    assert all(re.search(rf"\d{name}B\d+v", each) for each in names), names
