"""A cache as a file: docs/cache-file.md is the format."""

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from mmap import ACCESS_READ, MADV_DONTNEED, PAGESIZE, mmap
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from mlx_dsv4.errors import DamagedFileError, FileFormatError
from mlx_dsv4.paths import followed, naming, refuse_other_than_file, usable_path

MAGIC = b"DSV4ROWS"
VERSION = 1
PRELUDE = struct.Struct("<8sIIQ16s")  # magic, version, header bytes, file bytes, digest
PARTIAL = ".partial"
PIECE_BYTES = 8 << 20  # what is read or written, and hashed, at a time
MAX_HEADER_BYTES = 16 << 20

Bytes = NDArray[np.uint8]


def pieces(memory: Bytes) -> Iterator[Bytes]:
    """Contiguous bytes, a few MiB at a time."""
    flat = memory.reshape(-1)
    for first in range(0, flat.nbytes, PIECE_BYTES):
        yield flat[first : first + PIECE_BYTES]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` once the body is done and it is on disk.

    A link stays: the file that it leads to is replaced. Until then, and if the body or the process
    ends early, what was there stays as it was. The partial file is locked while it is written, so
    that others can tell it from one left behind; errors name ``path``.
    """
    target = followed(path)
    partial = target.with_name(f".{target.name}.{token_hex(8)}{PARTIAL}")
    with naming(path, instead_of=partial):
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
                yield file
                os.fsync(file.fileno())
                partial.replace(target)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as its files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_sections(
    file: BinaryIO, fields: Mapping[str, object], sections: Mapping[str, Bytes]
) -> None:
    """Write a whole file; the beginning last, so that one cut short is not recognised.

    Args:
        file: A binary file, empty, that can seek.
        fields: Of the header besides its sections.
        sections: Contiguous memory by name.
    """
    table = _table({name: memory.nbytes for name, memory in sections.items()})
    file.seek(PRELUDE.size + len(_header(fields, table)))
    for entry, memory in zip(table, sections.values(), strict=True):
        digest = xxh3_128()
        for piece in pieces(memory):
            digest.update(piece.data)
            write_all(file, piece.data)
        entry["xxh3_128"] = digest.hexdigest()
    n_bytes, header = file.tell(), _header(fields, table)
    file.seek(0)
    write_all(file, _prelude(header, n_bytes) + header)


def file_bytes(fields: Mapping[str, object], n_bytes: Mapping[str, int]) -> int:
    """Size of the file with these fields and sections."""
    return PRELUDE.size + len(_header(fields, _table(n_bytes))) + sum(n_bytes.values())


def _table(n_bytes: Mapping[str, int]) -> list[dict[str, Any]]:
    """Sections whose digests are still to be computed, and take as many bytes."""
    return [{"name": name, "n_bytes": n, "xxh3_128": "0" * 32} for name, n in n_bytes.items()]


def write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write every byte: an unbuffered file may take a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _header(fields: Mapping[str, object], table: list[dict[str, Any]]) -> bytes:
    return json.dumps(dict(fields) | {"sections": table}, sort_keys=True).encode()


def _prelude(header: bytes, n_bytes: int) -> bytes:
    fields = (MAGIC, VERSION, len(header), n_bytes)
    digest = xxh3_128(PRELUDE.pack(*fields, bytes(16)) + header).digest()
    return PRELUDE.pack(*fields, digest)


@dataclass(frozen=True, slots=True)
class _Section:
    offset: int
    n_bytes: int
    digest: str


class SectionFile:
    """A file of :func:`write_sections`, mapped; its header is checked, its sections when read.

    Attributes:
        fields: The header.
        n_bytes: Sizes of the sections by name, in their order.

    Raises:
        OSError: the path cannot be opened.
        FileFormatError: not such a file, or of another version.
        DamagedFileError: cut short, or its header has changed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = usable_path(path)
        self._opened = opened = ExitStack()
        refuse_other_than_file(self.path, "a saved cache")
        self.file = opened.enter_context(self.path.open("rb"))
        try:
            self._map = opened.enter_context(self._map_file())
            header = self._check_prelude()
            self.fields = self._parse(header)
            self._sections = self._place_sections(PRELUDE.size + len(header))
        except BaseException:
            self.close()
            raise
        self.n_bytes = {name: section.n_bytes for name, section in self._sections.items()}

    def read_into(self, name: str, target: Bytes) -> None:
        """Copy a section into contiguous memory of its size, and check it.

        Raises:
            DamagedFileError: the section has changed; part of ``target`` is written.
        """
        flat = target.reshape(-1)
        self._copy(name, lambda first, n_bytes: flat[first : first + n_bytes])

    def verify(self) -> None:
        """Read every section and keep nothing.

        Raises:
            DamagedFileError: one has changed.
        """
        scratch = np.empty(PIECE_BYTES, np.uint8)
        for name in self._sections:
            self._copy(name, lambda _, n_bytes: scratch[:n_bytes])

    def read(self, name: str) -> Bytes:
        """A section as bytes, checked.

        Raises:
            DamagedFileError: the section has changed.
        """
        data = np.empty(self.n_bytes[name], np.uint8)
        self.read_into(name, data)
        return data

    def close(self) -> None:
        """Let go of the file, and of its map, which keeps it open and locked too."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _copy(self, name: str, place: Callable[[int, int], Bytes]) -> None:
        """Copy a section piece by piece to where ``place(first, n_bytes)`` is, and check it."""
        section, digest = self._sections[name], xxh3_128()
        for first in range(0, section.n_bytes, PIECE_BYTES):
            piece = place(first, min(PIECE_BYTES, section.n_bytes - first))
            at = section.offset + first
            # No name for the view of the map: it could not be closed while an error holds one.
            piece[:] = np.frombuffer(self._map, np.uint8, piece.nbytes, at)
            digest.update(piece.data)
            self._let_go(at, at + piece.nbytes)
        if digest.hexdigest() != section.digest:
            raise self._damage(
                f"section {name!r} is damaged: its xxh3_128 must be {section.digest}; "
                f"got {digest.hexdigest()}"
            )

    def _error(self, message: str) -> FileFormatError:
        return FileFormatError(f"{self.path}: {message}")

    def _damage(self, message: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path}: {message}")

    def _map_file(self) -> mmap:
        n_bytes = os.fstat(self.file.fileno()).st_size
        if n_bytes < PRELUDE.size:
            raise self._damage(
                f"a saved cache has at least {PRELUDE.size} bytes; the file has {n_bytes}"
            )
        return mmap(self.file.fileno(), 0, access=ACCESS_READ)

    def _check_prelude(self) -> bytes:
        """The bytes of the header."""
        magic, version, header_bytes, n_bytes, _ = PRELUDE.unpack(self._map[: PRELUDE.size])
        if magic != MAGIC:
            raise self._error(f"a saved cache begins with {MAGIC!r}; got {magic!r}")
        if version != VERSION:
            raise self._error(f"version of the file must be {VERSION}; got {version}")
        if n_bytes != len(self._map):
            raise self._damage(f"the file must have {n_bytes} bytes; it has {len(self._map)}")
        if header_bytes > min(MAX_HEADER_BYTES, n_bytes - PRELUDE.size):
            raise self._error(f"the header must lie in the file; got {header_bytes} bytes")
        header = self._map[PRELUDE.size : PRELUDE.size + header_bytes]
        if _prelude(header, n_bytes) != self._map[: PRELUDE.size]:
            raise self._damage("the header is damaged: its digest does not match")
        return header

    def _parse(self, header: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise self._error(f"the header must be JSON; {error}") from error
        if not isinstance(fields, dict):
            raise self._error("the header must be a JSON object")
        return fields

    def _place_sections(self, at: int) -> dict[str, _Section]:
        """The table of the header, if its sections fill the file from ``at`` on."""
        sections: dict[str, _Section] = {}
        try:
            for entry in self.fields.pop("sections"):
                n_bytes = entry["n_bytes"]
                known = entry.keys() == {"name", "n_bytes", "xxh3_128"}
                fits = type(n_bytes) is int and 0 <= n_bytes <= len(self._map)
                if not known or not fits:
                    raise ValueError(f"got {entry}")
                if entry["name"] in sections:
                    raise ValueError(f"two are called {entry['name']!r}")
                sections[entry["name"]] = _Section(at, n_bytes, entry["xxh3_128"])
                at += n_bytes
        except (KeyError, TypeError, ValueError) as error:
            raise self._error(
                f"sections must be a list of a name, n_bytes and xxh3_128 each: {error}"
            ) from error
        if at != len(self._map):
            raise self._error(f"the sections must fill {len(self._map)} bytes; they end at {at}")
        return sections

    def _let_go(self, start: int, end: int) -> None:
        """Take pages that have been read out of this process's memory."""
        first = start // PAGESIZE * PAGESIZE
        self._map.madvise(MADV_DONTNEED, first, end - first)
