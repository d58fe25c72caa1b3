"""The header of a GGUF file, read with every bound checked before anything is allocated."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from typing import NoReturn

from mlx_dsv4.errors import FileFormatError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# Far above any vocabulary or chat template; a damaged count in a file of 100 GB stops here.
MAX_STRING_BYTES = 1 << 26
MAX_ARRAY_ELEMENTS = 1 << 24

_BOOL, _STRING, _ARRAY = 7, 8, 9
# Value type -> struct code. GGUF gives booleans a byte each.
_NUMBERS = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f"},
    **{_BOOL: "B", 10: "Q", 11: "q", 12: "d"},
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# The least bytes that one entry can take: what a count may promise is bounded by them.
_MIN_KEY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One line of the tensor table, as stored: dimensions innermost first, offset relative."""

    name: str
    dimensions: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensor data; ``end`` is the offset of the byte after it."""

    version: int
    metadata: dict[str, object]
    tensors: tuple[TensorEntry, ...]
    end: int


class _Cursor:
    """A reading position in the mapped file that cannot leave it."""

    def __init__(self, data: mmap, path: str) -> None:
        self.data = data
        self.path = path
        self.pos = 0
        self.size = len(data)

    def fail(self, section: str, message: str) -> NoReturn:
        raise FileFormatError(f"{self.path}: {section} at offset {self.pos}: {message}")

    def need(self, n_bytes: int, section: str) -> None:
        if n_bytes > self.size - self.pos:
            self.fail(
                section,
                f"the file must hold {n_bytes} more bytes; it ends after {self.size - self.pos}",
            )

    def number(self, layout: struct.Struct, section: str) -> int:
        self.need(layout.size, section)
        (value,) = layout.unpack_from(self.data, self.pos)
        self.pos += layout.size
        return int(value)

    def text(self, section: str) -> str:
        length = self.number(_U64, section)
        if length > MAX_STRING_BYTES:
            self.fail(section, f"a string must be at most {MAX_STRING_BYTES} bytes; got {length}")
        self.need(length, section)
        raw = self.data[self.pos : self.pos + length]
        try:
            value = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(section, f"a string must be UTF-8; {error.reason} at its byte {error.start}")
        self.pos += length
        return value


def read_header(data: mmap, path: str) -> Header:
    """Parse the header of a mapped GGUF file.

    Args:
        data: The whole file.
        path: Its name, for error messages.

    Raises:
        FileFormatError: a field is cut off, impossible or repeated; the message names the
            section and the offset.
    """
    cursor = _Cursor(data, path)
    cursor.need(24, "header")
    version = _read_version(cursor)
    n_tensors = cursor.number(_U64, "header")
    n_keys = cursor.number(_U64, "header")
    if n_keys * _MIN_KEY_BYTES + n_tensors * _MIN_TENSOR_BYTES > cursor.size - cursor.pos:
        cursor.fail(
            "header",
            f"{n_keys} keys and {n_tensors} tensors must fit in the remaining "
            f"{cursor.size - cursor.pos} bytes",
        )
    metadata: dict[str, object] = {}
    for index in range(n_keys):
        key = cursor.text(f"key {index}")
        if key in metadata:
            cursor.fail(f"key {index}", f"keys must be unique; {key!r} came before")
        metadata[key] = _read_value(cursor, f"value of {key!r}")
    entries: dict[str, TensorEntry] = {}
    for index in range(n_tensors):
        entry = _read_tensor_entry(cursor, index)
        if entry.name in entries:
            cursor.fail(
                f"tensor info {index}", f"tensor names must be unique; {entry.name!r} came before"
            )
        entries[entry.name] = entry
    return Header(version, metadata, tuple(entries.values()), cursor.pos)


def _read_version(cursor: _Cursor) -> int:
    cursor.pos = len(MAGIC)
    version = cursor.number(_U32, "header")
    if version in VERSIONS:
        return version
    cursor.pos -= _U32.size
    if int.from_bytes(_U32.pack(version), "big") in VERSIONS:
        cursor.fail("header", "the file must be little endian; it is big endian")
    known = " or ".join(map(str, VERSIONS))
    return cursor.fail("header", f"the GGUF version must be {known}; got {version}")


def _read_value(cursor: _Cursor, section: str) -> object:
    type_id = cursor.number(_U32, section)
    if type_id == _STRING:
        return cursor.text(section)
    if type_id == _ARRAY:
        return _read_array(cursor, section)
    values = _read_numbers(cursor, type_id, 1, section)
    return values[0]


def _read_array(cursor: _Cursor, section: str) -> list[object]:
    type_id = cursor.number(_U32, section)
    count = cursor.number(_U64, section)
    if count > MAX_ARRAY_ELEMENTS:
        most = MAX_ARRAY_ELEMENTS
        cursor.fail(section, f"an array must have at most {most} elements; got {count}")
    if type_id == _STRING:
        return _read_strings(cursor, count, section)
    return _read_numbers(cursor, type_id, count, section)


def _read_numbers(cursor: _Cursor, type_id: int, count: int, section: str) -> list[object]:
    code = _NUMBERS.get(type_id)
    if code is None:
        kind = "an array of arrays" if type_id == _ARRAY else f"value type {type_id}"
        cursor.fail(section, f"the value type must be a number or a string; got {kind}")
    cursor.need(count * struct.calcsize(f"<{code}"), section)
    layout = struct.Struct(f"<{count}{code}")
    values = layout.unpack_from(cursor.data, cursor.pos)
    if type_id == _BOOL:
        if not set(values) <= {0, 1}:
            cursor.fail(section, f"a boolean must be 0 or 1; got {max(values)}")
        values = tuple(map(bool, values))
    cursor.pos += layout.size
    return list(values)


def _read_strings(cursor: _Cursor, count: int, section: str) -> list[object]:
    """A vocabulary has a quarter of a million strings: this loop is the time of the header."""
    cursor.need(count * _U64.size, section)
    unpack: Callable[[mmap, int], tuple[int]] = _U64.unpack_from
    data, pos, last = cursor.data, cursor.pos, cursor.size - _U64.size
    strings: list[object] = []
    append = strings.append
    try:
        for _ in range(count):
            if pos > last:
                cursor.pos = pos
                cursor.need(_U64.size, section)
            (length,) = unpack(data, pos)
            start = pos + 8
            pos = start + length
            if pos > last + 8:
                cursor.pos = start
                cursor.need(length, section)
            append(data[start:pos].decode())
    except UnicodeDecodeError as error:
        cursor.pos = start
        cursor.fail(section, f"a string must be UTF-8; {error.reason} at its byte {error.start}")
    cursor.pos = pos
    return strings


def _read_tensor_entry(cursor: _Cursor, index: int) -> TensorEntry:
    section = f"tensor info {index}"
    name = cursor.text(section)
    section = f"{section} ({name!r})"
    n_dimensions = cursor.number(_U32, section)
    if not 1 <= n_dimensions <= MAX_DIMENSIONS:
        cursor.fail(section, f"a tensor must have 1 to {MAX_DIMENSIONS} dims; got {n_dimensions}")
    dimensions = tuple(cursor.number(_U64, section) for _ in range(n_dimensions))
    if 0 in dimensions:
        cursor.fail(section, f"every dimension must be positive; got {list(dimensions)}")
    type_id = cursor.number(_U32, section)
    offset = cursor.number(_U64, section)
    return TensorEntry(name, dimensions, type_id, offset)
