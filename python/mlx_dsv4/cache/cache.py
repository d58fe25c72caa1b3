"""The cache of one session: plan, work, commit; go back, branch, grow."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from weakref import ref

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache.anchors import Anchors
from mlx_dsv4.cache.buffers import Buffers
from mlx_dsv4.cache.fingerprint import Fingerprint, differences
from mlx_dsv4.cache.layer import LayerCache, Rows
from mlx_dsv4.cache.plan import CachePlan, Step, plan_step
from mlx_dsv4.cache.snapshot import Snapshot, freeze
from mlx_dsv4.cache.timeline import Timeline
from mlx_dsv4.errors import CacheStateError, SnapshotError

Replay = Callable[[int, int], object]


class Cache:
    """Everything a session remembers of its tokens; the only mutable state of a model.

    A call is planned (pure), its work is submitted, then it is committed. A failure after work
    was submitted poisons the cache: part of the buffers may be written, so that it answers
    nothing until :meth:`reset` or :meth:`restore`. One thread at a time may use a cache; caches
    that share rows may be used by different threads.

    Args:
        plan: Sizes, from :func:`plan_cache`.
        fingerprint: What the rows depend on besides the tokens; that of the plan alone if None.

    Attributes:
        plan: Sizes as they are; :meth:`grow` replaces it.
        position: Tokens held, the cursor of the next call.

    Raises:
        AllocationError: the planned bytes are not available on this machine.
        PlanError: the buffers made do not add up to the planned bytes.
    """

    def __init__(self, plan: CachePlan, fingerprint: Fingerprint | None = None) -> None:
        self._settle(plan, fingerprint or Fingerprint(plan.config, plan.row_dtype))
        self._enter(Buffers(plan))

    def _settle(self, plan: CachePlan, fingerprint: Fingerprint) -> None:
        self.plan = plan
        self.fingerprint = fingerprint
        self.position = 0
        self._timeline = Timeline()
        self._anchors = Anchors()
        self._poison: str | None = None
        self._running: Step | None = None  # a call that has not ended
        self._buffers: Buffers | None = None
        # Of a branch that has not written yet: what is not in the buffers it reads.
        self._frozen: Snapshot | None = None

    @property
    def capacity_tokens(self) -> int:
        return self.plan.capacity_tokens

    @property
    def poisoned(self) -> bool:
        return self._poison is not None or self._running is not None

    @property
    def layers(self) -> tuple[LayerCache, ...]:
        """The buffers by layer. A branch gets its own ones here if it has none yet."""
        self._own_buffers()
        return self._held.layers

    @property
    def _held(self) -> Buffers:
        assert self._buffers is not None
        return self._buffers

    def held_bytes(self) -> int:
        """Bytes of the cache's own buffers; 0 for a branch that has not written yet."""
        return 0 if self._frozen else self._held.held_bytes()

    def handles(self) -> list[mx.array]:
        """Every buffer of every layer."""
        return [] if self._frozen else self._held.handles()

    def plan_step(self, n_tokens: int) -> Step:
        """Where a call of ``n_tokens`` tokens at the cursor writes; changes nothing.

        Raises:
            CacheStateError: the cache is poisoned, or the tokens do not fit.
        """
        self._check_usable()
        return plan_step(self.plan, self.position, n_tokens)

    @contextmanager
    def step(self, n_tokens: int) -> Iterator[Step]:
        """Plan, run the body, commit. Whatever the body raises poisons the cache first.

        Raises:
            CacheStateError: as :meth:`plan_step`.
            AllocationError: this branch, or one whose rows would be overwritten, needs buffers
                of its own and there is no memory for them; nothing has changed.
        """
        step = self.plan_step(n_tokens)
        self._own_buffers()
        self._give_up_rows(step.start)
        # First and last, so that wherever an interrupt strikes it leaves a poisoned cache.
        self._running = step
        try:
            yield step
            if self._running is not step or self._poison:
                raise CacheStateError("a cache must not be used by others while a call runs")
            self._append(step.n_tokens)
        except BaseException as error:
            self.poison(f"{type(error).__name__} at positions {step.start}..: {error}")
            # What was submitted may still write, and must not meet what a restore writes.
            mx.synchronize(mx.default_stream(mx.default_device()))
            raise
        self._running = None

    def commit(self, start: int, n_tokens: int) -> None:
        """Make ``n_tokens`` tokens at ``start`` part of the session.

        Raises:
            CacheStateError: poisoned, ``start`` is not the cursor, or past the capacity.
        """
        self._check_usable()
        if start != self.position:
            raise CacheStateError(f"a commit must start at the cursor {self.position}; got {start}")
        if n_tokens < 1 or start + n_tokens > self.capacity_tokens:
            raise CacheStateError(
                f"a commit must end in {start + 1}..{self.capacity_tokens}; got {start + n_tokens}"
            )
        self._append(n_tokens)

    def _append(self, n_tokens: int) -> None:
        self._held.submitted = self.handles()
        self._timeline.cut(self.position)
        self._timeline.append(self.position + n_tokens)
        self.position += n_tokens

    def poison(self, reason: str) -> None:
        """Declare the buffers unusable from the cursor on; the first reason is kept."""
        self._poison = self._poison or reason
        self._timeline.cut(self.position)

    def reset(self) -> None:
        """Forget every token: position 0, values 0, scores -inf, not poisoned."""
        target = Buffers(self.plan) if self._frozen else None
        self._poison = "a reset was interrupted"
        if target is not None:
            self._move_to(target, keep_tokens=False)
            self._timeline.cut(0)
        self._held.abandon()
        for layer in self._held.layers:
            layer.reset()
        self.position = 0
        self._running = self._poison = None

    def snapshot(self) -> Snapshot:
        """This position as an immutable value of ``plan.snapshot_bytes`` bytes.

        Waits for what is in flight, then copies those bytes, whatever the context.

        Raises:
            CacheStateError: the cache is poisoned.
        """
        self._check_usable()
        mark = self._timeline.mark(self.position)
        with self._held.lock:
            if self._frozen:
                return replace(self._frozen, mark=mark)
        try:
            self._held.wait()
        except Exception as error:
            self.poison(f"{type(error).__name__} before position {self.position}: {error}")
            raise
        data = freeze(self._held.layers, self.position, self.plan.snapshot_bytes)
        return Snapshot(self.position, self.fingerprint, mark, data)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back, or forward again, to a snapshot of this cache; clears poison.

        Rows after its position become invisible, and are overwritten by what is appended next.

        Raises:
            SnapshotError: of another model, plan or row format; of another cache; or tokens were
                appended since from a position before it. Nothing has changed.
        """
        self.check_holds(snapshot)
        with self._held.lock:
            if self._frozen:
                self._frozen = snapshot
            else:
                self._held.abandon()
                self._poison = "a restore was interrupted"
                self._held.thaw(snapshot.data, snapshot.position)
            self.position = snapshot.position
            self._running = self._poison = None

    def branch(self, snapshot: Snapshot) -> "Cache":
        """A second cache that continues from a snapshot of this one.

        Neither sees what the other appends. Closed rows before the snapshot are shared until one
        of them must write to them: the branch copies them when it first appends, or when this
        cache goes back before the snapshot and appends. If this cache is gone by then, the branch
        takes its buffers over and copies nothing.

        Raises:
            SnapshotError: as :meth:`restore`; nothing has changed.
        """
        self.check_holds(snapshot)
        other = Cache.__new__(Cache)
        other._settle(self.plan, self.fingerprint)
        with self._held.lock:
            other._buffers = self._held
            other._frozen = snapshot
            other._timeline = self._timeline.fork(snapshot.position)
            other.position = snapshot.position
            self._held.readers.add(other)
        return other

    def grow(self, capacity_tokens: int) -> None:
        """Move to buffers for more tokens; snapshots and anchors stay valid.

        Copies the window, the states and the rows of closed spans. Until all of that has
        succeeded the cache stays as it was; both sets of buffers exist meanwhile.

        Args:
            capacity_tokens: At least the present one, which changes nothing.

        Raises:
            CacheStateError: the cache is poisoned.
            PlanError: less than the present capacity, or more than the model's context.
            AllocationError: the planned bytes are not available.
        """
        self._check_usable()
        plan = self.plan.grown(capacity_tokens)
        if plan.capacity_tokens > self.capacity_tokens:
            self._move_to(Buffers(plan))

    @property
    def anchors(self) -> tuple[Snapshot, ...]:
        """The positions that :meth:`rewind` can return to, ascending."""
        return self._anchors.ascending(self._timeline)

    def anchor(self) -> Snapshot:
        """Keep a snapshot of this position for :meth:`rewind`.

        Raises:
            CacheStateError: the cache is poisoned.
        """
        self._check_usable()
        for kept in self.anchors:
            if kept.position == self.position:
                return kept
        snapshot = self.snapshot()
        self._anchors.keep(snapshot)
        return snapshot

    def drop_anchor(self, position: int) -> None:
        """Let go of the anchor at ``position``, if there is one."""
        self._anchors.drop(position)

    def rewind(self, position: int, replay: Replay | None = None) -> None:
        """Go back to exactly ``position``, by an anchor at or before it.

        Args:
            position: 0 to the present one. The empty cache is an anchor, at 0.
            replay: Called as ``replay(start, end)`` to append the tokens ``[start, end)`` again
                if the anchor is before ``position``:
                ``lambda start, end: model.prefill(tokens[start:end], cache)``.

        Raises:
            CacheStateError: no anchor lets it go there, and nothing has changed; or ``replay``
                ended elsewhere.
        """
        if replay is not None and not callable(replay):
            raise CacheStateError(f"replay must be a function of (start, end); got {replay!r}")
        if not isinstance(position, int) or not 0 <= position <= self.position:
            raise CacheStateError(
                f"rewind needs a position in 0..{self.position}, the cursor; got {position}"
            )
        if position == self.position and not self.poisoned:
            return
        anchor = self._anchors.before(position, self._timeline, exactly=replay is None)
        if anchor is None:
            self.reset()
        else:
            self.restore(anchor)
        reached = self.position
        if replay is not None and reached < position:
            replay(reached, position)
            self._check_usable()
            if self.position != position:
                raise CacheStateError(
                    f"replay({reached}, {position}) must end at {position}; got {self.position}"
                )

    def _check_usable(self) -> None:
        if self.poisoned:
            reason = self._poison or "a call has not ended"
            raise CacheStateError(
                f"cache is poisoned ({reason}); reset it or restore a snapshot to go on"
            )

    def check_holds(self, snapshot: Snapshot) -> None:
        """Refuse a snapshot that this cache cannot continue from.

        Raises:
            SnapshotError: as :meth:`restore`.
        """
        if not isinstance(snapshot, Snapshot):
            raise SnapshotError(f"a Snapshot is needed; got {type(snapshot).__name__}")
        if snapshot.fingerprint != self.fingerprint:
            wrong = differences(self.fingerprint.fields(), snapshot.fingerprint.fields())
            raise SnapshotError(f"snapshot is of another cache: {'; '.join(wrong)}")
        if snapshot.mark.root != self._timeline.root:
            raise SnapshotError("a snapshot must be of this cache; it is of another one")
        if not self._timeline.holds(snapshot.mark):
            raise SnapshotError(
                f"the rows before the snapshot's position {snapshot.position} must still be in "
                f"this cache: tokens were appended since from an earlier position, or they are "
                f"those of a branch; branch before going back to keep both"
            )

    def closed_rows(self, position: int) -> list[Rows]:
        """The memory of closed spans' rows by layer and kind; see :meth:`LayerCache.closed`.

        They do not change while nobody goes back before ``position`` and appends.
        """
        return [layer.closed(position) for layer in self._held.layers]

    def lend_rows(self, snapshot: Snapshot) -> AbstractContextManager[list[Rows]]:
        """:meth:`closed_rows` to read; raises SnapshotError at the end if they were overwritten."""
        return self._held.lend_rows(snapshot.mark)

    def begin_at(self, position: int, data: NDArray[np.uint8]) -> None:
        """Continue at a position whose rows were put into the memory of :meth:`closed_rows`.

        Args:
            position: Tokens held from here on.
            data: As in a :class:`Snapshot`.
        """
        self.reset()
        self._held.thaw(data, position)
        self._timeline = self._held.timeline = Timeline()
        self._timeline.append(position)
        self.position = position

    def __reduce_ex__(self, protocol: object) -> str:
        raise CacheStateError("a cache cannot be copied: branch from a snapshot, or save it")

    def _own_buffers(self) -> None:
        """Make sure that this cache is the one that writes to its buffers."""
        with self._held.lock:
            if self._frozen is None:
                return
            if self._held.only_reader_is(self):
                self._held.abandon()
                self._held.thaw(self._frozen.data, self.position)
                self._enter(self._held)
            else:
                self._move_to(Buffers(self.plan))

    def _give_up_rows(self, position: int) -> None:
        """Before rows from ``position`` on are overwritten: branches that read them copy them."""
        with self._held.lock:
            for branch in list(self._held.readers):
                # Not its cursor: it may have gone back, and may go forward again.
                if branch._timeline.end > position:
                    branch._own_buffers()

    def _move_to(self, target: Buffers, *, keep_tokens: bool = True) -> None:
        """Leave the present buffers for empty ones, with what is held or without."""
        with self._held.lock:
            # Read under the lock: the origin may have moved this branch while it waited.
            source = self._held
            if keep_tokens:
                snapshot = self._frozen or self.snapshot()
                # Those after the cursor too: a snapshot may go forward to them again.
                target.copy_closed_rows(source, self._timeline.end)
                target.thaw(snapshot.data, self.position)
            self._enter(target)
            # After that: an interrupt between leaves a reader too many, which costs a copy.
            source.readers.discard(self)
            if source.owner is not None and source.owner() is self:
                source.owner, source.timeline = None, self._timeline.fork(self._timeline.end)

    def _enter(self, buffers: Buffers) -> None:
        buffers.readers.discard(self)
        buffers.owner, buffers.timeline = ref(self), self._timeline
        self.plan = buffers.plan
        self._buffers = buffers
        self._frozen = None
