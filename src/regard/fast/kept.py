"""What numba keeps of compiled functions on the disk, safe for several processes at once.

Numba keeps a list for each function, from the types it is called with to numbered files. Two processes that add
different types at the same moment both take the next number, and then the list of one stands beside the file of the
other: code for other types, in every process from then on. A process that is killed between list and file can leave the
like behind. Names that no other process uses make the worst of it a file that is missing, which is compiled again.
"""

from typing import TypeVar
from uuid import uuid4

Made = TypeVar("Made")

_NUMBER = "{number:d}"
_mine = uuid4().hex[:16]


def kept(made: Made) -> Made:
    """A function that numba compiles and keeps, with names of this process' own for its files."""
    files = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if files is not None:
        files._data_name_pattern = files._data_name_pattern.replace(_NUMBER, f"{_NUMBER}-{_mine}")
    return made
