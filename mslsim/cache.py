"""The folder of compiled shaders: content-addressed, and safe for several processes at once."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
# What a compiled shader depends on beside its own text.
SOURCES = ("compiler.py", "library.py", "rewriter/*.py", "include/*")


def folder() -> Path:
    """Where compiled files are kept: $XDG_CACHE_HOME/mslsim or ~/.cache/mslsim."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(home) / "mslsim"
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest(*parts: object) -> str:
    """A name for what these parts determine."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part if isinstance(part, bytes) else str(part).encode())
        hasher.update(b"\0")
    return hasher.hexdigest()[:24]


@cache
def own_digest(*patterns: str) -> str:
    """A name for the simulator's own sources."""
    files = sorted(
        path for pattern in patterns or SOURCES for path in PACKAGE.glob(pattern) if path.is_file()
    )
    return digest(*(part for path in files for part in (path.name, path.read_bytes())))


@contextmanager
def publish(target: Path) -> Iterator[Path]:
    """A path to write; it becomes `target` in one step when the block succeeds."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
