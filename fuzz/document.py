"""A GGUF file in pieces that can be changed one at a time, right or wrong, and written again."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
from mlx_dsv4.gguf import GGUFFile

STRING, ARRAY = 8, 9
NUMBER_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass(frozen=True)
class Field:
    """Where a number lies that a reader must not trust: a count, a length, a type, an offset."""

    start: int
    size: int


@dataclass
class Key:
    """One line of the metadata; ``body`` is what follows the type."""

    name: bytes
    type_id: int
    body: bytes

    def fields(self) -> Iterator[Field]:
        """Numbers in ``body``: lengths, counts, a single value, some values of an array."""
        if self.type_id in NUMBER_BYTES:
            yield Field(0, len(self.body))
        elif self.type_id == STRING:
            yield Field(0, 8)
        elif self.type_id == ARRAY:
            yield from (Field(0, 4), Field(4, 8))
            item_type, _ = struct.unpack_from("<IQ", self.body)
            size = NUMBER_BYTES.get(item_type)
            at, number = 12, 0
            while at < len(self.body):
                if number & (number - 1) == 0:  # the first, and fewer of those that follow
                    yield Field(at, size or 8)
                at += size or 8 + int.from_bytes(self.body[at : at + 8], "little")
                number += 1


@dataclass
class Tensor:
    """One line of the tensor table, dimensions innermost first, and its bytes."""

    name: bytes
    dims: list[int]
    type_id: int
    data: bytes = field(repr=False)


@dataclass
class Document:
    """What a file says; the counts and offsets are made when it is written."""

    keys: list[Key]
    tensors: list[Tensor]
    alignment: int = 32
    version: int = 3

    def copy(self) -> "Document":
        """Another document, whose parts can be changed without changing this one's."""
        keys = [replace(key) for key in self.keys]
        tensors = [replace(tensor, dims=list(tensor.dims)) for tensor in self.tensors]
        return Document(keys, tensors, self.alignment, self.version)

    def key(self, name: str) -> Key | None:
        """The first key of that name."""
        return next((key for key in self.keys if key.name == name.encode()), None)

    def encode(self) -> "Encoded":
        """The file, every count, length and offset right."""
        out = Encoded()
        out.raw += b"GGUF"
        out.number("I", self.version)
        out.number("Q", len(self.tensors))
        out.number("Q", len(self.keys))
        for key in self.keys:
            out.text(key.name)
            out.number("I", key.type_id)
            out.fields += [Field(len(out.raw) + f.start, f.size) for f in key.fields()]
            out.raw += key.body
        out.n_key_fields = len(out.fields)
        offset = 0
        for tensor in self.tensors:
            out.text(tensor.name)
            out.number("I", len(tensor.dims))
            for dim in tensor.dims:
                out.number("Q", dim)
            out.number("I", tensor.type_id)
            out.number("Q", offset)
            offset += self._padded(len(tensor.data))
        out.header_end = len(out.raw)
        out.raw += bytes(-len(out.raw) % self.alignment)
        for tensor in self.tensors:
            out.raw += tensor.data + bytes(self._padded(len(tensor.data)) - len(tensor.data))
        return out

    def _padded(self, n_bytes: int) -> int:
        return -(-n_bytes // self.alignment) * self.alignment


@dataclass
class Encoded:
    """The bytes of a file, and which of them are numbers of its header, the keys' first."""

    raw: bytearray = field(default_factory=bytearray)
    fields: list[Field] = field(default_factory=list)
    n_key_fields: int = 0
    header_end: int = 0

    def number(self, code: str, value: int) -> None:
        self.fields.append(Field(len(self.raw), struct.calcsize(code)))
        self.raw += struct.pack(f"<{code}", value)

    def text(self, value: bytes) -> None:
        self.number("Q", len(value))
        self.raw += value


def read_document(path: Path) -> Document:
    """Take a valid file apart."""
    reader = gguf.GGUFReader(path)
    keys = []
    for name, entry in reader.fields.items():
        if not name.startswith("GGUF."):
            raw = b"".join(part.tobytes() for part in entry.parts)
            at = 8 + len(name.encode())
            keys.append(
                Key(name.encode(), int.from_bytes(raw[at : at + 4], "little"), raw[at + 4 :])
            )
    with GGUFFile(path) as file:
        tensors = [
            Tensor(name.encode(), list(info.shape[::-1]), info.type_id, file.raw(name).tobytes())
            for name, info in file.tensors.items()
        ]
        return Document(keys, tensors, file.alignment, file.version)
