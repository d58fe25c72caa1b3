"""What a person or a script types, message by message."""

import io
import sys
from importlib import import_module
from importlib.util import find_spec

FIRST, MORE = "> ", "... "


class Messages:
    """Reads stdin: a line is a message, and goes on in the next one where it ends in a backslash.

    Attributes:
        interactive: Whether a person types them on a terminal, and reads the answers on one.
    """

    def __init__(self) -> None:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        self.interactive = bool(
            sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty()
        )
        if self.interactive and find_spec("readline"):
            import_module("readline")  # gives input() its editing and history

    def next(self) -> str | None:
        """The next message; None after the last one.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was typed of it is forgotten.
        """
        lines: list[str] = []
        while (line := self._line(MORE if lines else FIRST)) is not None:
            lines.append(line.removesuffix("\\"))
            if lines[-1] == line:
                break
        return "\n".join(lines) if lines else None

    def _line(self, prompt: str) -> str | None:
        if not self.interactive:
            line = sys.stdin.readline() if sys.stdin else ""
            return line.removesuffix("\n") if line else None
        try:
            return input(prompt)
        except EOFError:
            print()
            return None
