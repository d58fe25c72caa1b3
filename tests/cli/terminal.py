"""A program on a terminal of its own, as a person uses it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

TIMEOUT_S = 60
CTRL_C, CTRL_D = "\x03", "\x04"
# The terminal becomes that of the program, so that Ctrl-C is a signal to it.
TAKE_TERMINAL = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


class Terminal:
    """Types to a program and reads what it shows."""

    def __init__(self, command: Sequence[str], *, columns: int = 100) -> None:
        self._leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))
        environment = os.environ | {"TERM": "xterm"}
        for name in ("COLUMNS", "NO_COLOR"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *command],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            env=environment,
        )
        os.close(follower)
        self._unread = ""

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C once the program waits: one between a prompt and the wait for keys counts late."""
        deadline, asleep = time.monotonic() + TIMEOUT_S, 0
        stat = Path(f"/proc/{self._process.pid}/stat")
        while asleep < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
            sleeps = not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "S"
            asleep = asleep + 1 if sleeps else 0
        self.type(CTRL_C)

    def until(self, pattern: str) -> str:
        """What is shown up to the end of the first match."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := re.search(pattern, self._unread)):
            assert self._read(deadline), f"{pattern!r} must be shown; got {self._unread!r}"
        shown, self._unread = self._unread[: found.end()], self._unread[found.end() :]
        return shown

    def rest(self) -> tuple[int, str]:
        """The exit code, once it has ended, and what is shown until then."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._read(deadline):
            pass
        return self._process.wait(max(deadline - time.monotonic(), 1)), self._unread

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._leader], [], [], max(deadline - time.monotonic(), 0))
        try:
            piece = os.read(self._leader, 65536) if ready else b""
        except OSError:  # the other side is closed
            piece = b""
        self._unread += piece.decode(errors="replace")
        return bool(piece)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._leader)
