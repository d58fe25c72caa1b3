"""The cache file as docs/cache-file.md describes it, read and written without the package."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

PRELUDE = "<8sIIQ16s"


@dataclass
class Parts:
    """What a file consists of; to change a part and write the whole consistently again."""

    header: dict[str, Any]
    sections: list[bytes]
    magic: bytes = b"DSV4ROWS"
    version: int = 1

    @property
    def named(self) -> dict[str, bytes]:
        names = [section["name"] for section in self.header["sections"]]
        return dict(zip(names, self.sections, strict=True))

    def to_bytes(self) -> bytes:
        """With every digest and size made right."""
        return join(json.dumps(self.header).encode(), self.sections, self.magic, self.version)

    def digest_sections(self) -> None:
        for entry, data in zip(self.header["sections"], self.sections, strict=True):
            entry |= {"n_bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}


def join(
    header: bytes, sections: list[bytes], magic: bytes = b"DSV4ROWS", version: int = 1
) -> bytes:
    """A file whose prelude is right about its header and size."""
    n_bytes = struct.calcsize(PRELUDE) + len(header) + sum(map(len, sections))
    fields = (magic, version, len(header), n_bytes)
    digest = xxhash.xxh3_128_digest(struct.pack(PRELUDE, *fields, bytes(16)) + header)
    return b"".join([struct.pack(PRELUDE, *fields, digest), header, *sections])


def parse(path: Path) -> Parts:
    """Takes a file apart, checking every digest."""
    data = path.read_bytes()
    magic, version, header_bytes, n_bytes, digest = struct.unpack_from(PRELUDE, data)
    at = struct.calcsize(PRELUDE)
    header = data[at : at + header_bytes]
    assert n_bytes == len(data)
    assert digest == xxhash.xxh3_128_digest(
        struct.pack(PRELUDE, magic, version, header_bytes, n_bytes, bytes(16)) + header
    )
    at += header_bytes
    parts = Parts(json.loads(header), [], magic, version)
    for entry in parts.header["sections"]:
        parts.sections.append(data[at : at + entry["n_bytes"]])
        assert xxhash.xxh3_128_hexdigest(parts.sections[-1]) == entry["xxh3_128"]
        at += entry["n_bytes"]
    assert at == len(data)
    return parts
