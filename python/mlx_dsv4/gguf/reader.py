"""A GGUF file, mapped: its metadata, its tensor table and the raw bytes of each tensor."""

import math
import os
from dataclasses import dataclass, replace
from itertools import pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.errors import FileFormatError, UnsupportedModelError
from mlx_dsv4.gguf.blocks import FORMATS, n_bytes_of
from mlx_dsv4.gguf.header import DEFAULT_ALIGNMENT, MAGIC, Header, TensorEntry, read_header
from mlx_dsv4.gguf.parts import check_part, check_total, part_paths
from mlx_dsv4.paths import naming, refuse_other_than_file, usable_path

# First bytes -> what a file without the GGUF magic is.
_FOREIGN = {
    b"": "an empty file",
    b"PK\x03\x04": "a zip archive (PyTorch checkpoints are)",
    b"version https://git-lfs": "a Git LFS pointer: the file itself has yet to be downloaded",
    b"tjgg": "a GGJT file, which came before GGUF",
    b"lmgg": "a GGML file, which came before GGUF",
    b"\x93NUMPY": "a NumPy array",
    b"<": "a web page or XML",
    b"{": "JSON text",
}
_TO_GGUF = "`mlx-dsv4 convert` makes a GGUF file of a checkpoint's folder"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in the file and how it is stored.

    Args:
        name: As in the file.
        shape: Outer dimension first.
        format: Name of the block format in lower case, or ``type N`` for an unknown id.
        type_id: The id in the file.
        offset: Of the first byte, from the start of the file.
        n_bytes: Size; for an unknown format, the room up to the next tensor.
        part: Number of the file it lies in, 0 unless the model is split.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    type_id: int
    offset: int
    n_bytes: int
    part: int = 0

    @property
    def known(self) -> bool:
        """Whether the block format is one whose layout is known."""
        return self.type_id in FORMATS

    @property
    def n_elements(self) -> int:
        """The product of the dimensions."""
        return math.prod(self.shape)


class GGUFFile:
    """A GGUF file of version 2 or 3, little endian, mapped read-only; all parts of a split one.

    The header is parsed and checked at once; tensor bytes are read when used. A tensor of an
    unknown type id does not stop the file from opening, so that it can be inspected:
    :meth:`raw` and :func:`mlx_dsv4.gguf.check_tensors` refuse it. Views that :meth:`raw` gave
    out stay valid after :meth:`close`.

    Raises:
        OSError: the path cannot be opened or read.
        FileFormatError: not GGUF, cut off, or inconsistent; the message names section and offset.

    Attributes:
        path: Of the file, or of the first part.
        paths: Of all parts.
        identities: Device, inode and size of each part.
        n_bytes: Their sizes together.
        version, metadata, alignment: Of the first one.
        tensors: Of all parts, by name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = usable_path(path)
        first, identity = _map_file(self.path)
        self.identities = [identity]
        header = read_header(first, str(self.path))
        self.version = header.version
        self.metadata = header.metadata
        self.alignment = _alignment(header.metadata, self.path)
        self.paths = part_paths(self.path, header.metadata)
        self._maps: list[mmap] = [first]
        self.tensors = _tensors_of_part(header, self.alignment, len(first), self.path, 0)
        for number, other in enumerate(self.paths[1:], 1):
            self._add_part(other, number)
        check_total(self.path, self.metadata, len(self.tensors))
        self.n_bytes = sum(map(len, self._maps))

    def _add_part(self, path: Path, number: int) -> None:
        part, identity = _map_file(path)
        self.identities.append(identity)
        header = read_header(part, str(path))
        check_part(path, header.metadata, number, len(self.paths))
        alignment = _alignment(header.metadata, path)
        tensors = _tensors_of_part(header, alignment, len(part), path, number)
        for name in tensors.keys() & self.tensors.keys():
            other = self.paths[self.tensors[name].part]
            raise FileFormatError(f"{path}: tensor {name!r} must be in one part; {other} has it")
        self._maps.append(part)
        self.tensors |= tensors

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of one tensor: a read-only view of the mapping, ``[n_bytes]`` uint8.

        Raises:
            KeyError: no tensor of that name.
            UnsupportedModelError: its type id is unknown, and with it its size.
            ValueError: the file is closed.
        """
        info = self.tensors[name]
        if not info.known:
            raise UnsupportedModelError(
                f"{self.path}: the format of tensor {name!r} must be known; "
                f"got type id {info.type_id}"
            )
        if not self._maps:
            raise ValueError(f"{self.path} is closed")
        part = self._maps[info.part]
        return np.frombuffer(part, np.uint8, count=info.n_bytes, offset=info.offset)

    def close(self) -> None:
        """Let go of the mappings; they end with the last view of them."""
        self._maps = []

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _map_file(path: Path) -> tuple[mmap, tuple[int, int, int]]:
    if path.is_dir() and any(path.glob("*.safetensors")):
        found = f"a directory of safetensors files: {_TO_GGUF}"
        raise FileFormatError(f"{path}: must be a GGUF file; got {found}")
    refuse_other_than_file(path, "a GGUF file")
    with naming(path), path.open("rb") as file:
        head = file.read(64)
        if head[: len(MAGIC)] != MAGIC:
            raise FileFormatError(f"{path}: must be a GGUF file; got {_recognise(head)}")
        mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
        info = os.fstat(file.fileno())
        return mapped, (info.st_dev, info.st_ino, len(mapped))


def _recognise(head: bytes) -> str:
    if not head:
        return _FOREIGN[b""]
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return f"a safetensors file: {_TO_GGUF}"
    for magic, kind in _FOREIGN.items():
        if magic and head.startswith(magic):
            return kind
    return f"a file that begins with {head[:4]!r} instead of {MAGIC!r}"


def _alignment(metadata: dict[str, object], path: Path) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(value, bool) or not isinstance(value, int) or value.bit_count() != 1 or value < 1:
        raise FileFormatError(f"{path}: general.alignment must be a power of two; got {value!r}")
    return value


def _tensors_of_part(
    header: Header, alignment: int, n_bytes: int, path: Path, part: int
) -> dict[str, TensorInfo]:
    """Turn table entries into places in the file, each inside it and free of the others."""
    start = -(-header.end // alignment) * alignment
    order = sorted(header.tensors, key=lambda entry: entry.offset)
    offsets = [entry.offset for entry in order] + [n_bytes - start]
    placed = {
        entry.name: _place_tensor(entry, offsets[i + 1] - entry.offset, start, path)
        for i, entry in enumerate(order)
    }
    for info in placed.values():
        where = f"{path}: tensor data of {info.name!r} at offset {info.offset}"
        if (info.offset - start) % alignment:
            raise FileFormatError(
                f"{where}: the offset must be a multiple of the alignment {alignment}; "
                f"got {info.offset - start} after the header"
            )
        if info.offset + info.n_bytes > n_bytes or info.offset > n_bytes:
            raise FileFormatError(
                f"{where}: {info.n_bytes} bytes must lie in the file; it ends at {n_bytes}"
            )
    for first, second in pairwise(placed.values()):
        if first.offset + first.n_bytes > second.offset:
            raise FileFormatError(
                f"{path}: tensor data of {second.name!r} at offset {second.offset}: must begin "
                f"after that of {first.name!r}, which ends at {first.offset + first.n_bytes}"
            )
    return {entry.name: replace(placed[entry.name], part=part) for entry in header.tensors}


def _place_tensor(entry: TensorEntry, room: int, start: int, path: Path) -> TensorInfo:
    shape = entry.dimensions[::-1]
    format = FORMATS.get(entry.type_id)
    if format is None:
        size = max(room, 1)
        format = f"type {entry.type_id}"
    else:
        try:
            size = n_bytes_of(format, shape)
        except ValueError as error:
            raise FileFormatError(f"{path}: tensor info ({entry.name!r}): {error}") from error
    return TensorInfo(entry.name, shape, format, entry.type_id, start + entry.offset, size)
