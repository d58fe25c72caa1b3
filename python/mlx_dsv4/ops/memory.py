"""Arrays that are not computed: held buffers, and bytes of a file read in place."""

from collections.abc import Sequence
from os import PathLike, fsencode

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_dsv4 import _ext
from mlx_dsv4.paths import usable_path


def uninitialized(shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    """An array of any content, for a buffer whose readable part is always written first.

    The system hands its pages out as they are first written, so a large cache costs memory only
    as far as it is used.

    Args:
        shape: Sizes of the axes.
        dtype: Type of the elements.
    """
    return _ext.uninitialized(list(shape), dtype)


def data_pointer(array: mx.array) -> int:
    """Address of an evaluated array's first element; equal addresses mean no copy was made."""
    return _ext.data_pointer(array)


def host_bytes(array: mx.array) -> NDArray[np.uint8]:
    """The memory of an evaluated array as bytes: what is written there is in the array.

    It is for held buffers while no work on them is in flight. The memory lives as long as either.

    Args:
        array: ``[N, D]`` of any dtype, row-contiguous.

    Returns:
        ``[N, row bytes]`` uint8, writable.

    Raises:
        ValueError: the array is still to be computed, or MLX would copy it.
    """
    address = data_pointer(array)
    view = mx.view(array, mx.uint8, stream=mx.cpu)
    mx.eval(view)
    if array.size and data_pointer(view) != address:
        raise ValueError("[host_bytes] array must be row-contiguous; got one with gaps")
    return np.asarray(view)


class MappedFile:
    """A file mapped into memory, read-only; arrays made from it copy nothing and keep it alive.

    Args:
        path: File to map.

    Raises:
        OSError: the path is none that a file can have.
        RuntimeError: the file cannot be opened or mapped, is empty, or is no regular file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._file = _ext.MappedFile(fsencode(usable_path(path)))

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return self._file.size

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: those of another mapping of the same file are equal."""
        device, inode = self._file.identity
        return device, inode

    def resident_bytes(self) -> int:
        """Bytes of the file that are in memory, whichever program read them; whole pages.

        Linux tells the owner of a file and whoever may write it; to others all of it looks
        resident.

        Raises:
            RuntimeError: the system does not tell.
        """
        return self._file.resident_bytes()

    def view(self, offset_bytes: int, shape: Sequence[int]) -> mx.array:
        """The bytes from ``offset_bytes`` on as a uint8 array of ``shape``.

        Raises:
            ValueError: the range does not lie in the file (its first 8 bytes are reserved).
        """
        return self._file.view(offset_bytes, list(shape))
