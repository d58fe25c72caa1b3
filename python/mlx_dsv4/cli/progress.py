"""The progress bar of commands that go through a large file."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


def byte_progress(title: str, *, shown: bool = True) -> Progress:
    """A bar of bytes with their rate on stderr, if that is a terminal; it goes when it is done."""
    console = Console(stderr=True)
    return Progress(
        TextColumn(title),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (shown and console.is_terminal),
    )
