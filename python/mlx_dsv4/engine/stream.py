"""The events of one generation, from the thread that makes them to whoever reads them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from threading import Condition

from mlx_dsv4.engine.events import Done, Event, Result, Text


class Mailbox:
    """Where one thread puts events and another takes them.

    Attributes:
        cancelled: Whether the reader wants no more; looked at between steps.
        on_cancel: Called when it becomes so.
    """

    def __init__(self) -> None:
        self._items: deque[Event | BaseException] = deque()
        self._changed = Condition()
        self._wake: Callable[[], None] | None = None
        self.cancelled = False
        self.on_cancel: Callable[[], None] | None = None

    def cancel(self) -> None:
        """The reader wants no more."""
        if not self.cancelled:
            self.cancelled = True
            if self.on_cancel is not None:
                self.on_cancel()

    def put(self, item: Event | BaseException) -> None:
        """Add an event, or the error that ends them."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def take(self) -> Event | BaseException:
        """The next one, once there is one."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            return self._items.popleft()

    async def take_async(self) -> Event | BaseException:
        """The next one, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        while True:
            ready = asyncio.Event()
            with self._changed:
                if self._items:
                    return self._items.popleft()
                self._wake = _wake_of(loop, ready)
            await ready.wait()


class Stream:
    """A running generation: iterate over it with ``for`` or ``async for``.

    It computes whether anybody reads or not. Leaving a ``for`` loop, a ``with`` block or the last
    reference behind cancels it; a session is consistent afterwards. One reader at a time.

    Args:
        mailbox: Where the events come.
        owner: Kept while somebody reads: an engine that nobody refers to closes itself.

    Raises:
        Dsv4Error: from the iteration, what ended the generation.
    """

    def __init__(self, mailbox: Mailbox, owner: object = None) -> None:
        self._mailbox = mailbox
        self._owner = owner
        self._result: Result | None = None
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Event]:
        try:
            while not self.ended:
                yield self._see(self._mailbox.take())
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            while not self.ended:
                yield self._see(await self._mailbox.take_async())
        finally:
            self.cancel()

    @property
    def ended(self) -> bool:
        """Whether the last event has been read."""
        return self._result is not None or self._error is not None

    def text(self) -> "Pieces":
        """The pieces of the answer alone, without reasoning and calls, to be read in both ways."""
        return Pieces(self)

    def result(self) -> Result:
        """Wait for the end; events that come until then are passed over."""
        for _ in self:
            pass
        return self._ended_with()

    async def wait(self) -> Result:
        """As :meth:`result`, without blocking the event loop."""
        async for _ in self:
            pass
        return self._ended_with()

    def cancel(self) -> None:
        """Stop after the step that is running; the last event says "cancelled"."""
        self._mailbox.cancel()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()

    def _see(self, item: Event | BaseException) -> Event:
        if isinstance(item, BaseException):
            self._error = item
            raise item
        if isinstance(item, Done):
            self._result = item.result
        return item

    def _ended_with(self) -> Result:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class Pieces:
    """The text of a stream: iterate over it with ``for`` or ``async for``.

    Args:
        stream: Leaving the loop cancels it, as for the events.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        for event in self._stream:
            if isinstance(event, Text):
                yield event.text

    async def __aiter__(self) -> AsyncIterator[str]:
        async for event in self._stream:
            if isinstance(event, Text):
                yield event.text


def _wake_of(loop: asyncio.AbstractEventLoop, ready: asyncio.Event) -> Callable[[], None]:
    def wake() -> None:
        # A loop that has been closed has no reader; it may be closed at any moment.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(ready.set)

    return wake
