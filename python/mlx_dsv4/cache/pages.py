"""How the system hands out the memory of a cache."""

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

LARGE_PAGE = 2 << 20
_LIBC = ctypes.CDLL(None)


def expect_filling(memory: NDArray[np.uint8]) -> None:
    """Say that all of some new memory is about to be written; what it holds does not change.

    Linux hands memory out 4 KiB at a time, which takes longer than copying into it. It can do so
    2 MiB at a time; it may decline. The last part is not asked for, as the rest of it may stay
    unused; the first part is, as it holds the window, or memory that is in use.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    first = memory.ctypes.data // LARGE_PAGE * LARGE_PAGE
    end = (memory.ctypes.data + memory.nbytes) // LARGE_PAGE * LARGE_PAGE
    if first < end:
        _LIBC.madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(end - first), ctypes.c_int(mmap.MADV_HUGEPAGE)
        )
