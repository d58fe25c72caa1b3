"""The positions that a cache promises to return to."""

from mlx_dsv4.cache.snapshot import Snapshot
from mlx_dsv4.cache.timeline import Timeline
from mlx_dsv4.errors import CacheStateError


class Anchors:
    """Kept snapshots, one per position."""

    def __init__(self) -> None:
        self._kept: dict[int, Snapshot] = {}

    def keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, in place of another one of its position."""
        self._kept[snapshot.position] = snapshot

    def drop(self, position: int) -> None:
        """Let go of the one at ``position``, if there is one."""
        self._kept.pop(position, None)

    def ascending(self, timeline: Timeline) -> tuple[Snapshot, ...]:
        """Those whose rows are still there, by position; the others go."""
        self._kept = {at: kept for at, kept in self._kept.items() if timeline.holds(kept.mark)}
        return tuple(self._kept[position] for position in sorted(self._kept))

    def before(self, position: int, timeline: Timeline, *, exactly: bool) -> Snapshot | None:
        """The deepest one at or before ``position``; None is the empty cache.

        Args:
            position: To return to.
            timeline: Of the cache.
            exactly: Whether nothing can be appended again to get there from an earlier one.

        Raises:
            CacheStateError: none lets it go there.
        """
        kept = self.ascending(timeline)
        before = [snapshot for snapshot in kept if snapshot.position <= position]
        nearest = before[-1] if before else None
        reached = nearest.position if nearest else 0
        if reached < position and exactly:
            raise CacheStateError(
                f"rewind to {position} needs an anchor there, or `replay` to append "
                f"{reached}..{position} again: the nearest anchor is at {reached}"
            )
        return nearest
