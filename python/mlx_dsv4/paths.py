"""Paths as callers give them: checked before they are used, and named where the system does not."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlx_dsv4.errors import FileFormatError


def usable_path(path: str | os.PathLike[str]) -> Path:
    """A path that the system can be asked for.

    Raises:
        OSError: it holds a null character or a lone surrogate, which no file name can.
    """
    try:
        usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        reason = "a path must hold neither null characters nor lone surrogates"
        raise OSError(errno.EINVAL, reason, os.fspath(path))
    return Path(path)


def refuse_other_than_file(path: Path, expected: str) -> None:
    """Refuse what is there and no regular file: opening a pipe waits for somebody to write.

    Args:
        path: Of what may be there.
        expected: What the file must be, for the message.

    Raises:
        FileFormatError: it is something else.
    """
    if path.is_dir():
        raise FileFormatError(f"{path}: must be {expected}; got a directory")
    if path.exists() and not path.is_file():
        raise FileFormatError(f"{path}: must be {expected}; got a device, socket or pipe")


def followed(path: Path) -> Path:
    """Where a file is written that takes the place of ``path``: links stay, their targets change.

    Raises:
        OSError: links lead to one another.
    """
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    return target


@contextmanager
def naming(path: Path, *, instead_of: Path | None = None) -> Iterator[None]:
    """Give the path to errors of reading and writing, which do not say of which file they are.

    Args:
        path: As the caller gave it.
        instead_of: A file that stands for it, whose name would say nothing to the caller.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str | bytes) and error.filename != str(instead_of):
            raise
        reason = error.strerror or str(error)
        raise OSError(error.errno, reason, os.fspath(path)) from error
