"""The text: Python's standard library, which is on every machine that runs this."""

import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Tables and other languages: long, and nothing that reads like Python.
_LEFT_OUT = ("encodings", "site-packages", "dist-packages", "__pycache__", "lib2to3", "unidata")
_MOST_BYTES = 400_000
_LEAST_BYTES = 200
# Of the files, one in this many is held out.
_HELD_OUT = 40


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the standard library; ``name`` is its path in there."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether it is kept from training: the same files on every machine and in every run."""
        return zlib.crc32(self.name.encode()) % _HELD_OUT == 0

    @property
    def is_test(self) -> bool:
        """Whether it belongs to the tests, which are two thirds of the library."""
        return not {"test", "tests", "idle_test"}.isdisjoint(self.name.split("/"))


def standard_library(folder: Path | None = None) -> Iterator[Source]:
    """The sources of a standard library, by name.

    Files that are not almost all ASCII are left out (tests of codecs), and so are very short and
    very long ones.

    Args:
        folder: Where it is; None is that of the running Python.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if any(part in name for part in _LEFT_OUT):
            continue
        content = path.read_bytes()
        if not _LEAST_BYTES <= len(content) <= _MOST_BYTES:
            continue
        if sum(byte >= 128 for byte in content) > len(content) // 200:
            continue
        try:
            yield Source(name, content.decode().replace("\r\n", "\n").expandtabs(4))
        except UnicodeDecodeError:
            continue
