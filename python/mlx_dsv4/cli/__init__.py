"""The command line: argument parsing, printing and exit codes, nowhere else.

Exit codes: 0 done, 1 the file, prompt or machine cannot do what was asked, 2 wrong arguments,
130 interrupted.
"""

import io
import os
import sys
from typing import NoReturn, TextIO

INTERRUPTED = 130


def main() -> NoReturn:
    """Run the program; every foreseen failure is one message and an exit code."""
    try:
        _prepare_output()
        _run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _prepare_output() -> None:
    """Text always has somewhere to go, and a form there.

    A closed descriptor is taken at once: it would go to the next file that is opened, and libraries
    that write to it by its number into that file.
    """
    if sys.stdout is None:
        sys.stdout = _nowhere(1)
    if sys.stderr is None:
        sys.stderr = _nowhere(2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _nowhere(descriptor: int) -> TextIO:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    return open(descriptor, "w", errors="replace", closefd=False)


def _run() -> NoReturn:
    # Imported here so that an interrupt while it loads ends as any other.
    from mlx_dsv4.cli.app import app
    from mlx_dsv4.errors import Dsv4Error

    try:
        app()
    except (OSError, Dsv4Error, ImportError) as error:
        _fail(describe(error))
    sys.exit(0)


def describe(error: Exception) -> str:
    """A foreseen failure in one line."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _fail(message: str) -> NoReturn:
    print(f"mlx-dsv4: {message}", file=sys.stderr)
    sys.exit(1)
