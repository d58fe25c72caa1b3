"""What the clients of a soak tell: every generation with its time, counts, and what went wrong."""

import faulthandler
import itertools
import sys
from collections import Counter
from dataclasses import dataclass
from threading import Lock

from mlx_dsv4 import Params
from mlx_dsv4.engine import Result


@dataclass(frozen=True)
class Record:
    """A generation that gave a result.

    Args:
        kind: Of the request.
        params: It was asked with.
        result: It gave.
        text: The pieces of text that its reader saw, joined; None if nobody read to the end.
        chat: Whether messages were rendered.
        started, ended: On the journal's clock.
    """

    kind: str
    params: Params
    result: Result
    text: str | None
    chat: bool
    started: int
    ended: int


class Journal:
    """Written to by all clients at once.

    Args:
        silence_seconds: If nothing is written for so long, the process prints the stacks of all
            threads and exits with 1.

    Attributes:
        counts: By (heading, what).
        failures: What went wrong, in words.
    """

    def __init__(self, silence_seconds: float) -> None:
        self._silence_seconds = silence_seconds
        self._clock = itertools.count()
        self._lock = Lock()
        self._records: list[Record] = []
        self._abandoned: list[list[int]] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.failures: list[str] = []
        self.alive()

    def now(self) -> int:
        return next(self._clock)

    def alive(self) -> None:
        """Something has ended: put the watchdog off."""
        faulthandler.dump_traceback_later(self._silence_seconds, exit=True, file=sys.__stderr__)

    def stop(self) -> None:
        """Nothing is expected any more."""
        faulthandler.cancel_dump_traceback_later()

    def count(self, heading: str, what: str, n: int = 1) -> None:
        with self._lock:
            self.counts[heading, what] += n

    def outcome(self, kind: str, what: str) -> None:
        """A request has ended."""
        self.count("requests", kind)
        self.count("outcomes", what)
        self.alive()

    def add(self, record: Record) -> None:
        with self._lock:
            self._records.append(record)
        self.outcome(record.kind, record.result.finish_reason)

    def abandon(self, prompt: list[int]) -> None:
        """A prompt that was read, in whole or in part, and whose result nobody has."""
        with self._lock:
            self._abandoned.append(prompt)

    def fail(self, what: str) -> None:
        with self._lock:
            self.failures.append(what)
            self.counts["outcomes", "FAILED"] += 1

    def take(self) -> tuple[list[Record], list[list[int]]]:
        """What has come since the last call."""
        with self._lock:
            taken = self._records, self._abandoned
            self._records, self._abandoned = [], []
        return taken
