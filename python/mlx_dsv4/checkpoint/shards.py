"""The tensors of a folder of safetensors files: found, bounded and mapped."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.utility import LocalTensor, SafetensorsLocal
from numpy.typing import NDArray

from mlx_dsv4.errors import FileFormatError
from mlx_dsv4.paths import naming, refuse_other_than_file

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# Bytes of an element, for every type that tensors of this model are stored in.
ITEM_BYTES = {
    **{"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1},
    **{"BF16": 2, "I32": 4, "F32": 4, "I64": 8},
}
_NAMES_IN_MESSAGE = 4


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint.

    Args:
        name: As in the file.
        path: Of the file.
        dtype: As safetensors spell it: ``F8_E4M3``, ``BF16``.
        shape: Outer dimension first.
        place: Where its bytes are.
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    place: LocalTensor

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"

    def codes(self) -> NDArray[np.uint8]:
        """Its bytes, ``[rows, row bytes]`` uint8: a mapping of this tensor alone."""
        mapped: NDArray[np.uint8] = self.place.mmap_bytes().view(np.ndarray)
        return mapped.reshape(math.prod(self.shape[:-1]), -1)


def read_shards(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint by name, in the order of its index.

    Args:
        folder: With ``model.safetensors.index.json`` and the files that it names, or with one
            ``model.safetensors``.

    Raises:
        OSError: a file cannot be read.
        FileFormatError: files are missing, cut off or damaged.
    """
    index = folder / INDEX
    if not index.exists():
        if not (folder / SINGLE).exists():
            raise FileFormatError(f"{folder}: must hold {INDEX} or {SINGLE}; got neither")
        return _read_shard(folder / SINGLE)
    places = _weight_map(index)
    absent = sorted({file for file in places.values() if not (folder / file).exists()})
    if absent:
        raise FileFormatError(f"{index}: its files must lie beside it; missing: {_some(absent)}")
    shards = {file: _read_shard(folder / file) for file in dict.fromkeys(places.values())}
    lost = [f"{name} in {file}" for name, file in places.items() if name not in shards[file]]
    if lost:
        raise FileFormatError(f"{index}: its tensors must be in its files; missing: {_some(lost)}")
    return {name: shards[file][name] for name, file in places.items()}


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        OSError: the file cannot be read.
        FileFormatError: it holds something else, or is no file.
    """
    refuse_other_than_file(path, "a JSON file")
    try:
        with naming(path):
            content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: must be JSON; {error}") from None
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: must be a JSON object; got {type(content).__name__}")
    return content


def _weight_map(index: Path) -> dict[str, str]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, Mapping) or not places:
        raise FileFormatError(f"{index}: weight_map must be an object of tensor names and files")
    for name, file in places.items():
        if not isinstance(file, str) or not file or Path(file).name != file:
            raise FileFormatError(f"{index}: {name} must be in a file beside it; got {file!r}")
    return dict(places)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_IN_MESSAGE} more" if len(names) > _NAMES_IN_MESSAGE else ""
    return ", ".join(names[:_NAMES_IN_MESSAGE]) + more


def _read_shard(path: Path) -> dict[str, StoredTensor]:
    refuse_other_than_file(path, "a safetensors file")
    n_bytes = path.stat().st_size
    try:
        with naming(path):
            found = SafetensorsLocal(path).tensors
        return {name: _stored(name, path, place, n_bytes) for name, place in found.items()}
    except FileFormatError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        # What the package's reader trips over in a damaged header.
        raise FileFormatError(f"{path}: must be a safetensors file; {error!r}") from None


def _stored(name: str, path: Path, place: LocalTensor, n_bytes: int) -> StoredTensor:
    begin, size = place.data_range.offset, place.data_range.size
    if size < 0 or begin < 0 or begin + size > n_bytes:
        raise FileFormatError(
            f"{path}: {name}: bytes {begin} to {begin + size} must lie in the file; "
            f"it ends at {n_bytes}"
        )
    expected = math.prod(place.shape) * ITEM_BYTES.get(place.dtype, 0)
    if expected and size != expected:
        raise FileFormatError(
            f"{path}: {name}: {place.dtype} of shape {list(place.shape)} must be "
            f"{expected} bytes; got {size}"
        )
    return StoredTensor(name, path, place.dtype, place.shape, place)
