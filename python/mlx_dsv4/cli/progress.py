"""The progress bars of commands."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
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


def token_progress(console: Console) -> Progress:
    """A bar of prompt tokens on stderr, if that is a terminal; it goes when it is done."""
    return Progress(
        TextColumn("reading prompt"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
