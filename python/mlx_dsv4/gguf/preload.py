"""Reading a file ahead, so that the weights are in memory before they are asked for."""

from collections.abc import Callable, Sequence
from pathlib import Path

from mlx_dsv4.paths import naming

PIECE_BYTES = 8 << 20

Progress = Callable[[int, int], None]


def preload(paths: Sequence[Path], on_progress: Progress | None = None) -> None:
    """Read files from beginning to end into the system's page cache.

    Nothing is kept: what the system has no room for, or drops later, is read again when used.

    Args:
        paths: Of the files.
        on_progress: Called with (bytes read, bytes in all) after each piece.

    Raises:
        OSError: a file cannot be read.
    """
    total = sum(path.stat().st_size for path in paths)
    piece = bytearray(PIECE_BYTES)
    done = 0
    for path in paths:
        with naming(path), path.open("rb", buffering=0) as file:
            while n_bytes := file.readinto(piece):
                done += n_bytes
                if on_progress:
                    on_progress(done, total)
