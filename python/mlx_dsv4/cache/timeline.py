"""Which appended rows a cache still holds: going back and appending overwrites rows."""

from dataclasses import dataclass
from itertools import count

_stretch_ids = count()


@dataclass(frozen=True, slots=True)
class Mark:
    """A position on a timeline; it is still held while the rows before it are the same.

    Attributes:
        root: Names the timeline and its forks.
        stretch: Names the rows that end at the position.
        position: Tokens before it.
    """

    root: int
    stretch: int
    position: int


class Timeline:
    """The rows of a cache as stretches, each appended without going back.

    Closed rows are append-only, so a snapshot needs no copy of them, only to know that nobody has
    gone back before its position and appended other tokens. Going back alone overwrites nothing.

    Attributes:
        root: The same in forks alone.
        end: Rows of the positions before it are there.
    """

    def __init__(self) -> None:
        self._stretches = [(0, next(_stretch_ids))]  # (first position, id), both ascending
        self.root = self._stretches[0][1]
        self.end = 0

    def mark(self, position: int) -> Mark:
        """A mark at a position up to ``end``."""
        return Mark(self.root, self._stretch_before(position), position)

    def holds(self, mark: Mark) -> bool:
        """Whether the rows before the mark are those that were there when it was made."""
        return mark.position <= self.end and self._stretch_before(mark.position) == mark.stretch

    def cut(self, position: int) -> None:
        """Give up the rows from ``position`` on: they are about to be overwritten."""
        if position < self.end:
            self._begin_stretch(position)

    def append(self, end: int) -> None:
        """Rows were appended up to ``end``."""
        self.end = end

    def fork(self, position: int) -> "Timeline":
        """Another timeline, with the rows before ``position`` and its own ones after."""
        other = Timeline()
        other.root = self.root
        other._stretches = [*self._stretches]
        other._begin_stretch(position)
        return other

    def _begin_stretch(self, position: int) -> None:
        while len(self._stretches) > 1 and self._stretches[-1][0] >= position:
            self._stretches.pop()
        self._stretches.append((position, next(_stretch_ids)))
        self.end = position

    def _stretch_before(self, position: int) -> int:
        """Id of the stretch that holds the row of ``position - 1``; the first one at 0."""
        for first, stretch in reversed(self._stretches):
            if first < position:
                return stretch
        return self._stretches[0][1]
