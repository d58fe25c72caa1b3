"""One conversation with a slot of its own."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import finalize

from mlx_dsv4.engine.requests import Asked, Requests
from mlx_dsv4.engine.scheduler import Scheduler
from mlx_dsv4.engine.slot import Slot
from mlx_dsv4.engine.stream import Stream
from mlx_dsv4.engine.turns import Turns
from mlx_dsv4.errors import ClosedError
from mlx_dsv4.text import ChatEncoding

if TYPE_CHECKING:
    from mlx_dsv4.engine.engine import Engine


class Session(Requests):
    """A slot for one conversation alone: what it has read stays until it reads something else.

    Generations of one session run one after the other, in the order in which they were asked for.
    Used in a ``with`` statement it gives its slot back; so it does when nobody refers to it.

    Args:
        engine: Whose slot it is.
        slot: Held for this session.
        scheduler: Of the engine.
    """

    def __init__(self, engine: "Engine", slot: Slot, scheduler: Scheduler) -> None:
        self.tokenizer = engine.tokenizer
        self._engine = engine
        self._slot: Slot | None = slot
        self._scheduler = scheduler
        self._give_back = finalize(self, _release, slot, scheduler)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that its cache holds.

        Raises:
            ClosedError: the session or its engine has been closed.
        """
        slot = self._open()
        return self._scheduler.call(lambda: tuple(slot.ledger))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what the session has read to a file, from which :meth:`load` goes on.

        Waits for what runs in it. The file has that one position and no anchors: a prompt that
        differs before it is read from the beginning. So is the next turn of a conversation that
        thinks without tools, whose format leaves out the reasoning; the ``store`` of
        :meth:`Engine.load` keeps the anchor before it. See :func:`mlx_dsv4.cache.save_cache`.

        Raises:
            OSError: the file cannot be written.
            CacheStateError: a step failed, so that nothing is held that could be saved.
            ClosedError: as :attr:`tokens`.
        """
        slot = self._open()
        self._when_idle(lambda: slot.save(path))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file of :meth:`save`, in place of what the session holds.

        Raises:
            OSError, FileFormatError, SnapshotError, PlanError, AllocationError: as
                :func:`mlx_dsv4.cache.load_cache`; the session is as it was.
            ClosedError: as :attr:`tokens`.
        """
        slot = self._open()
        self._when_idle(lambda: slot.load(path))

    def reset(self) -> None:
        """Forget every token, and give back the memory.

        Raises:
            ClosedError: as :attr:`tokens`.
        """
        self._when_idle(self._open().clear)

    def close(self) -> None:
        """Give the slot back. Generations that run go on to their end."""
        self._slot = None
        self._give_back()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Slot:
        if self._slot is None:
            raise ClosedError("a session must be open; it has been closed")
        return self._slot

    def _when_idle(self, work: Callable[[], None]) -> None:
        """Do something with the slot once nothing runs in it."""
        slot = self._open()
        self._scheduler.call_in(slot, work)

    def _submit(self, asked: Asked) -> Stream:
        return self._engine.submit(asked, slot=self._open())

    def _chat_parts(self) -> tuple[ChatEncoding, Turns]:
        return self._engine.chat_parts()


def _release(slot: Slot, scheduler: Scheduler) -> None:
    slot.held_by_session = False
    scheduler.wake()
