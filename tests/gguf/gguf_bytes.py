"""GGUF files made byte by byte, so that any of them can be wrong."""

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = dict(zip((U8, I8, U16, I16, U32, I32, F32, BOOL), "BbHhIifB", strict=True))
_CODES |= dict(zip((U64, I64, F64), "Qqd", strict=True))


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def number(kind: int, *values: float) -> bytes:
    return struct.pack(f"<{len(values)}{_CODES[kind]}", *values)


def scalar(kind: int, value: float) -> bytes:
    return number(U32, kind) + number(kind, value)


def string(value: str | bytes) -> bytes:
    return number(U32, STRING) + text(value)


def array(kind: int, body: bytes, count: int) -> bytes:
    return number(U32, ARRAY) + number(U32, kind) + number(U64, count) + body


def tensor(name: str, dims: list[int], type_id: int, offset: int) -> bytes:
    head = text(name) + number(U32, len(dims)) + number(U64, *dims)
    return head + number(U32, type_id) + number(U64, offset)


@dataclass
class Gguf:
    """The parts of a file; ``keys`` are encoded values, ``tensors`` encoded table entries."""

    keys: list[tuple[str, bytes]] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    n_keys: int | None = None
    n_tensors: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        counts = number(U64, n_tensors) + number(U64, n_keys)
        keys = b"".join(text(key) + value for key, value in self.keys)
        return self.magic + self.version + counts + keys + b"".join(self.tensors)

    def encode(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data


def every_kind() -> Gguf:
    """A small file with a key of every type and three tensors, one after another."""
    numbers = [(U8, 200), (I8, -100), (U16, 60_000), (I16, -30_000), (U32, 4_000_000_000)]
    numbers += [(I32, -2_000_000_000), (F32, 0.5), (BOOL, 1)]
    numbers += [(U64, 1 << 63), (I64, -(1 << 62)), (F64, 1e-300)]
    keys = [(f"scalar.{kind}", scalar(kind, value)) for kind, value in numbers]
    keys += [(f"array.{kind}", array(kind, number(kind, value) * 3, 3)) for kind, value in numbers]
    words = ["", "a", "Ġthe", "模型", "<｜User｜>"]
    keys += [
        ("text", string("café ｜")),
        ("empty", string("")),
        ("words", array(STRING, b"".join(map(text, words)), len(words))),
        ("nothing", array(U32, b"", 0)),
    ]
    tensors = [
        tensor("one", [32, 2], 0, 0),
        tensor("two", [64], 8, 256),
        tensor("three", [4, 3, 2, 1], 26, 352),
    ]
    return Gguf(keys, tensors, bytes(range(256)) + bytes(96) + bytes(96))
