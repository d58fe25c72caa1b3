"""Split GGUF files: ``NAME-00001-of-00003.gguf`` holds the metadata, every part holds tensors."""

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

from mlx_dsv4.errors import FileFormatError

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def part_paths(path: Path, metadata: Mapping[str, object]) -> list[Path]:
    """The files of which ``path`` is the first; itself alone where it is not split.

    Args:
        path: Of the file that was asked for.
        metadata: Its metadata.

    Raises:
        FileFormatError: it is another part than the first, or its name is not that of a part.
        FileNotFoundError: a part is not beside it; names it.
    """
    number, count = _place(path, metadata)
    if count == 1:
        return [path]
    name = _NAME.fullmatch(path.name)
    if name is None or (int(name["number"]), int(name["count"])) != (number + 1, count):
        raise FileFormatError(
            f"{path}: part {number + 1} of {count} must be called "
            f"NAME-{number + 1:05}-of-{count:05}.gguf"
        )
    paths = [path.with_name(f"{name['stem']}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]
    if number != 0:
        raise FileFormatError(f"{path} is part {number + 1} of {count}: open the first, {paths[0]}")
    for other in paths[1:]:
        if not other.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(other))
    return paths


def check_part(path: Path, metadata: Mapping[str, object], number: int, count: int) -> None:
    """Refuse a file that is not the part its name says.

    Raises:
        FileFormatError: it says otherwise.
    """
    found = _place(path, metadata)
    if found != (number, count):
        raise FileFormatError(
            f"{path} must be part {number + 1} of {count}; got part {found[0] + 1} of {found[1]}"
        )


def check_total(path: Path, metadata: Mapping[str, object], n_tensors: int) -> None:
    """Refuse parts that do not hold as many tensors as the first one says.

    Raises:
        FileFormatError: there are more or fewer.
    """
    expected = metadata.get("split.tensors.count", n_tensors)
    if expected != n_tensors:
        raise FileFormatError(f"{path}: all parts must hold {expected} tensors; got {n_tensors}")


def _place(path: Path, metadata: Mapping[str, object]) -> tuple[int, int]:
    """Number, from 0 on, and count."""
    count = max(_integer(path, metadata, "split.count", 1), 1)
    number = _integer(path, metadata, "split.no", 0)
    if not 0 <= number < count:
        raise FileFormatError(f"{path}: split.no must be in 0..{count - 1}; got {number}")
    return number, count


def _integer(path: Path, metadata: Mapping[str, object], key: str, absent: int) -> int:
    value = metadata.get(key, absent)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FileFormatError(f"{path}: {key} must be an integer; got {value!r}")
    return value
