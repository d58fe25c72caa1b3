"""One kernel of a loaded library: its binding table and its launch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mslsim.errors import ShaderError
from mslsim.report import Report, read_findings
from mslsim.runtime import DIVERGENCE, FRESH, ORDERS, READ_ONLY, KernelEntry, Launch, runtime

# In the order of msl_kind in msl_abi.h.
KINDS = (
    *("buffer", "threadgroup", "thread_position_in_grid", "thread_position_in_threadgroup"),
    *("threadgroup_position_in_grid", "threads_per_grid", "threadgroups_per_grid"),
    *("threads_per_threadgroup", "dispatch_threads_per_threadgroup"),
    *("thread_index_in_threadgroup", "thread_index_in_simdgroup"),
    *("simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup", "threads_per_simdgroup"),
    *("thread_index_in_quadgroup", "quadgroup_index_in_threadgroup"),
    *("quadgroups_per_threadgroup", "grid_origin", "unknown"),
)
MAX_THREADS = 1024

Argument = npt.NDArray[Any] | np.generic | bytes | float
Size = int | Sequence[int]


@dataclass(frozen=True)
class Binding:
    """One parameter of a kernel."""

    kind: str
    index: int
    name: str
    type: str
    active: bool  # not switched off by a function constant
    readonly: bool


class Kernel:
    """A kernel with its function constants set, ready to run."""

    def __init__(
        self,
        name: str,
        entry: KernelEntry,
        library: Path,
        checks: bool,
        unset_constants: Sequence[tuple[int, str]],
    ) -> None:
        self.name = name
        self.unset_constants = list(unset_constants)
        self._entry = entry
        self._library = library
        self._checks = checks
        self._params = [
            Binding(
                kind=KINDS[param.kind],
                index=param.index,
                name=param.name.decode(),
                type=param.type.decode(),
                active=not param.function_constant or bool(param.function_constant[0]),
                readonly=bool(param.readonly),
            )
            for param in entry.params[: entry.n_params]
        ]

    @property
    def max_threads(self) -> int:
        """The most threads that a threadgroup of this kernel may have."""
        return int(self._entry.max_threads) or MAX_THREADS

    def binding_table(self) -> list[Binding]:
        """The buffers and the threadgroup memory that a launch must provide."""
        return [param for param in self._params if param.kind in {"buffer", "threadgroup"}]

    def dispatch(
        self,
        buffers: Sequence[Argument] | Mapping[int, Argument],
        *,
        threadgroup: Size,
        threadgroups: Size | None = None,
        threads: Size | None = None,
        threadgroup_bytes: Mapping[int, int] | None = None,
        order: str = "forward",
        seed: int = 0,
        divergence: str = "error",
        workers: int | None = None,
        timeout_s: float = 60.0,
        flush_denormals: bool = False,
        fresh: Sequence[int] = (),
        simd_ops_order_memory: bool = False,
    ) -> Report:
        """Runs a grid of `threadgroups` or of `threads`; raises ShaderError with what it finds.

        Arrays are bound by buffer index and written in place; NumPy scalars, numbers and bytes are
        copied, as Metal's setBytes does. `fresh` names outputs that start as never written.
        """
        launch = Launch()
        launch.kernel = ctypes.pointer(self._entry)
        kept = self._bind(launch, buffers, fresh)
        self._set_threadgroup_memory(launch, threadgroup_bytes or {})
        self._set_grid(launch, threadgroup, threadgroups, threads)
        launch.order = ORDERS.index(order)
        launch.seed = seed
        launch.divergence = DIVERGENCE.index(divergence)
        launch.check = self._checks
        launch.workers = workers or os.cpu_count() or 1
        launch.timeout_s = timeout_s
        launch.flush_denormals = flush_denormals
        launch.simd_ops_order_memory = simd_ops_order_memory
        runtime().msl_dispatch(launch)
        del kept
        findings = read_findings(launch.findings, self._library)
        report = Report(findings, launch.run_s, launch.copy_s)
        if launch.failed or any(not kind.endswith("-note") for kind in report.kinds()):
            raise ShaderError(f"{self.name}:\n{report}", report)
        return report

    def _bind(
        self,
        launch: Launch,
        buffers: Sequence[Argument] | Mapping[int, Argument],
        fresh: Sequence[int],
    ) -> list[npt.NDArray[Any]]:
        bound = dict(buffers) if isinstance(buffers, Mapping) else dict(enumerate(buffers))
        table = {param.index: param for param in self._params if param.kind == "buffer"}
        missing = [f"{i} ({p.name})" for i, p in table.items() if p.active and i not in bound]
        if missing:
            raise ShaderError(f"{self.name}: buffers not bound: {', '.join(missing)}")
        if extra := sorted(set(bound) - set(table)):
            raise ShaderError(f"{self.name}: there are no buffers {extra}")
        kept = []
        for index, argument in bound.items():
            param = table[index]
            array = as_array(argument, f"{self.name}: buffer {index} ({param.name})")
            readonly = param.readonly or not isinstance(argument, np.ndarray)
            if not readonly and not array.flags.writeable:
                raise ShaderError(f"{self.name}: writes buffer {index}, a read-only array")
            kept.append(array)
            launch.buffer_data[index] = array.ctypes.data
            launch.buffer_bytes[index] = array.nbytes
            launch.buffer_flags[index] = (READ_ONLY if readonly else 0) | (
                FRESH if index in fresh else 0
            )
        return kept

    def _set_threadgroup_memory(self, launch: Launch, lengths: Mapping[int, int]) -> None:
        for param in self._params:
            if param.kind == "threadgroup" and param.index not in lengths:
                raise ShaderError(
                    f"{self.name}: threadgroup memory {param.index} ({param.name}) has no length"
                )
        for index, n_bytes in lengths.items():
            if n_bytes % 16:
                raise ShaderError(f"{self.name}: threadgroup memory must be a multiple of 16 bytes")
            launch.threadgroup_bytes[index] = n_bytes

    def _set_grid(
        self, launch: Launch, threadgroup: Size, threadgroups: Size | None, threads: Size | None
    ) -> None:
        if (threadgroups is None) == (threads is None):
            raise ShaderError(f"{self.name}: give the grid as threadgroups or as threads")
        grid = threadgroups if threads is None else threads
        assert grid is not None
        launch.grid[:] = three(grid)
        launch.threadgroup[:] = three(threadgroup)
        launch.grid_is_threads = threads is not None
        n_threads = int(np.prod(three(threadgroup)))
        if not 0 < n_threads <= self.max_threads:
            raise ShaderError(
                f"{self.name}: {n_threads} threads per threadgroup; the limit is {self.max_threads}"
            )


def three(size: Size) -> tuple[int, int, int]:
    """A size in three dimensions."""
    x, y, z, *_ = (*((size,) if isinstance(size, int) else size), 1, 1)
    return (x, y, z)


def as_array(argument: Argument, what: str) -> npt.NDArray[Any]:
    """The memory to bind for an argument."""
    if isinstance(argument, bytes):
        array: npt.NDArray[Any] = np.frombuffer(argument, np.uint8)
    else:
        array = np.asarray(argument)
    if not array.flags.c_contiguous:
        raise ShaderError(f"{what} is not C-contiguous")
    return array if array.nbytes else np.zeros(1, np.uint8)
