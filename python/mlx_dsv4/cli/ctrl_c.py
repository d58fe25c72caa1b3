"""What Ctrl-C does while something runs that must come to an orderly end."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_calls(function: Callable[[], object]) -> Iterator[None]:
    """The first Ctrl-C in the body calls a function in place of raising KeyboardInterrupt.

    An exception could come between any two lines, and what was being handed over would be lost.
    A second Ctrl-C does raise it. Where Ctrl-C is ignored or handled already, that stays so.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return

    def call(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        function()

    signal.signal(signal.SIGINT, call)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
