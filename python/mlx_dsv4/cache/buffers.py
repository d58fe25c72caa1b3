"""The buffers of a cache, and who else reads them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache.layer import LayerCache, Rows
from mlx_dsv4.cache.pages import expect_filling
from mlx_dsv4.cache.plan import CachePlan
from mlx_dsv4.cache.snapshot import thaw
from mlx_dsv4.cache.timeline import Mark, Timeline
from mlx_dsv4.errors import AllocationError, PlanError, SnapshotError
from mlx_dsv4.memory import available_bytes

if TYPE_CHECKING:
    from mlx_dsv4.cache.cache import Cache

_log = logging.getLogger(__name__)


class Buffers:
    """Every buffer of a plan. One cache writes; its branches read closed rows.

    Args:
        plan: Sizes.

    Attributes:
        owner: The cache that writes; gone when it is, or has moved to other buffers.
        timeline: Of the cache that wrote last; says which rows are still those of a mark.
        readers: Branches that have not written yet.
        lock: Held while somebody moves in or out.

    Raises:
        AllocationError: the planned bytes are not available on this machine.
        PlanError: the buffers made do not add up to the planned bytes.
    """

    def __init__(self, plan: CachePlan) -> None:
        available = available_bytes()
        if available is not None and plan.n_bytes > available:
            raise AllocationError(
                f"cache of {plan.capacity_tokens} tokens needs {plan.n_bytes} bytes; "
                f"{available} are available on this machine: choose a smaller context"
            )
        self.plan = plan
        self.layers = tuple(LayerCache(layer) for layer in plan.layers)
        self.owner: ref[Cache] | None = None
        self.timeline = Timeline()
        self.readers: WeakSet[Cache] = WeakSet()
        self.lock = RLock()
        self.submitted: list[mx.array] = []
        if self.held_bytes() != plan.n_bytes:
            raise PlanError(f"planned {plan.n_bytes} bytes of cache, allocated {self.held_bytes()}")

    def held_bytes(self) -> int:
        """Bytes of the buffers as they are, to compare with the plan."""
        return sum(handle.nbytes for handle in self.handles())

    def handles(self) -> list[mx.array]:
        """Every buffer of every layer."""
        return [handle for layer in self.layers for handle in layer.handles()]

    def wait(self) -> None:
        """Until nothing that was committed is in flight."""
        mx.eval(self.submitted)

    def abandon(self) -> None:
        """Until nothing is in flight, whatever came of it: what is held is about to be replaced."""
        try:
            self.wait()
        except RuntimeError:
            _log.warning("work on a cache failed before it was given up", exc_info=True)
        self.submitted = []

    def thaw(self, data: NDArray[np.uint8], position: int) -> None:
        """Put the ring and the states of a snapshot back; nothing may be in flight."""
        thaw(data, self.layers, position)
        for layer in self.layers:
            layer.drop_handles()
        self.submitted = []

    def only_reader_is(self, cache: "Cache") -> bool:
        """Whether nobody else reads or writes here."""
        owned = self.owner is not None and self.owner() is not None
        return not owned and list(self.readers) == [cache]

    @contextmanager
    def lend_rows(self, mark: Mark) -> Iterator[list[Rows]]:
        """The memory of closed spans' rows before a mark, by layer, to read from.

        Raises:
            SnapshotError: at the end, if a cache wrote over them meanwhile.
        """
        yield [layer.closed(mark.position) for layer in self.layers]
        if not self.timeline.holds(mark):
            raise SnapshotError(
                f"the rows before the snapshot's position {mark.position} must still be in this "
                f"cache: tokens were appended meanwhile from an earlier position"
            )

    def copy_closed_rows(self, source: "Buffers", position: int) -> None:
        """Take the rows of closed spans from other buffers, which are only read."""
        for mine, theirs in zip(self.layers, source.layers, strict=True):
            rows = mine.closed(position)
            for kind, read in theirs.closed(position).items():
                expect_filling(rows[kind])
                rows[kind][:] = read
