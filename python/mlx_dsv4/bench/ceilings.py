"""What this machine's memory and disk can do with the same bytes, and what memory a call takes."""

import ctypes
import mmap
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4 import ops

PIECE_BYTES = 8 << 20
STATUS = Path("/proc/self/status")
LIBC = ctypes.CDLL(None)

Bytes = NDArray[np.uint8]


def timed_us(call: Callable[[], object]) -> float:
    """Microseconds of a call, without those of freeing what it returns."""
    start = time.perf_counter_ns()
    result = call()
    us = (time.perf_counter_ns() - start) / 1e3
    del result
    return us


def rate_gb_s(n_bytes: int, samples: Sequence[float]) -> float:
    """Bandwidth of the median sample: beside calls timed in turn with it, both meet one machine."""
    return n_bytes / statistics.median(samples) / 1e3


class Copies:
    """Plain copies of some memory, into pages that are not there yet, then into the same again.

    Attributes:
        one_thread_us: Microseconds of each copy on one thread: ``fresh_copy`` and
            ``touched_copy``.
    """

    def __init__(self) -> None:
        self.one_thread_us: dict[str, list[float]] = {"fresh_copy": [], "touched_copy": []}
        self._all_threads_us: dict[str, list[float]] = {"fresh_copy": [], "touched_copy": []}
        self.n_bytes = 0

    def sample(self, sources: Sequence[Bytes]) -> None:
        """Copy once more, what has the same size each time."""
        self.n_bytes = sum(source.nbytes for source in sources)
        warm_memory(self.n_bytes)
        by_threads = {ops.cpu_kernels().threads: self._all_threads_us, 1: self.one_thread_us}
        for n_threads, samples in by_threads.items():
            jobs = shared_out(fresh_memory(self.n_bytes), sources, n_threads)
            with ThreadPoolExecutor(n_threads) as pool:
                list(pool.map(time.sleep, [1e-3] * n_threads))  # until every thread has started
                for us in samples.values():
                    us.append(timed_us(partial(run_jobs, pool, jobs)))

    def gb_s(self) -> dict[str, float]:
        """Bandwidth by the same names, on one thread or on all: whichever copies faster."""
        return {
            name: max(rate_gb_s(self.n_bytes, us) for us in (one, self._all_threads_us[name]) if us)
            for name, one in self.one_thread_us.items()
        }


Pieces = list[tuple[Bytes, Bytes]]  # target, source


def shared_out(target: Bytes, sources: Sequence[Bytes], n_threads: int) -> list[Pieces]:
    """Pieces of about one size for every thread."""
    size = min(PIECE_BYTES, -(-target.nbytes // (4 * n_threads)))
    pieces, at = [], 0
    for source in sources:
        flat = source.reshape(-1)
        for first in range(0, flat.nbytes, size):
            piece = flat[first : first + size]
            pieces.append((target[at : at + piece.nbytes], piece))
            at += piece.nbytes
    return [pieces[thread::n_threads] for thread in range(n_threads)]


def run_jobs(pool: ThreadPoolExecutor, jobs: list[Pieces]) -> None:
    list(pool.map(copy_pieces, jobs))


def copy_pieces(pieces: Pieces) -> None:
    for target, source in pieces:
        np.copyto(target, source)


def fresh_memory(n_bytes: int) -> Bytes:
    """Memory whose pages the system hands out as they are written, large ones if it has them."""
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def warm_memory(n_bytes: int) -> None:
    """Let the host of a virtual machine find so much memory now, not in whatever is timed next."""
    fresh_memory(n_bytes).fill(0)


def write_file_us(path: Path, n_bytes: int, piece: Bytes) -> float:
    """Microseconds until a new file of that size is on disk; it is removed again."""

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for first in range(0, n_bytes, piece.nbytes):
                file.write(piece[: n_bytes - first].data)
            os.fsync(file.fileno())

    us = timed_us(write)
    path.unlink()
    return us


def read_file_us(path: Path, target: Bytes | None = None) -> float:
    """Microseconds of reading a file from its beginning to its end.

    Args:
        path: Of the file.
        target: As large as the file; a few MiB that are used again and again if None.
    """
    piece = (np.zeros(PIECE_BYTES, np.uint8) if target is None else target).data

    def read() -> None:
        at = 0
        with path.open("rb", buffering=0) as file:
            while n_bytes := file.readinto(piece[at : at + PIECE_BYTES]):
                at += n_bytes if target is not None else 0

    return timed_us(read)


def forget_file(path: Path) -> bool:
    """Take a file that is on disk out of the page cache; False where the system cannot."""
    if not hasattr(os, "posix_fadvise"):
        return False
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


class PeakMemory:
    """How far the process's resident memory rose inside blocks, at most.

    Where the system cannot reset the high-water mark (other than Linux), it is how far the mark
    rose, which is less where the process held more before.

    Attributes:
        rise: Bytes.
    """

    def __init__(self) -> None:
        self.rise = 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch a block. What malloc keeps goes back first, so that new buffers are new pages."""
        if hasattr(LIBC, "malloc_trim"):
            LIBC.malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        before = high_water_bytes()
        yield
        self.rise = max(self.rise, high_water_bytes() - before)


def high_water_bytes() -> int:
    """Most bytes that were resident at once."""
    if STATUS.exists():
        line = next(a for a in STATUS.read_text().splitlines() if a.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
