"""A position of a session as a value: what its cache would otherwise overwrite."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache.fingerprint import Fingerprint
from mlx_dsv4.cache.layer import LayerCache
from mlx_dsv4.cache.plan import WINDOW
from mlx_dsv4.cache.timeline import Mark
from mlx_dsv4.errors import SnapshotError


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The window rows and compressor states of one position; immutable.

    Closed rows are not in it: the cache keeps them, append-only. So its size does not depend on
    the position, and it is of use as long as nobody goes back before its position in that cache
    and appends other tokens.

    Attributes:
        position: Tokens that the cache held.
        fingerprint: Of the cache.
        mark: The position on the cache's timeline.
        data: ``[n_bytes]`` uint8, read-only: for each layer a whole window of rows, slot by slot,
            then its states (``compressor_score``, ``compressor_value``, ``indexer_score``,
            ``indexer_value``, as far as it has them). Slots that no token has reached are zero.
    """

    position: int
    fingerprint: Fingerprint = field(repr=False)
    mark: Mark = field(repr=False)
    data: NDArray[np.uint8] = field(repr=False)

    @property
    def n_bytes(self) -> int:
        return self.data.nbytes

    def __deepcopy__(self, memo: object) -> "Snapshot":
        return self

    def __reduce_ex__(self, protocol: object) -> str:
        raise SnapshotError("a snapshot is of use beside its cache alone: save the cache to a file")


def freeze(layers: tuple[LayerCache, ...], position: int, n_bytes: int) -> NDArray[np.uint8]:
    """The ring and the states of layers at a position: ``data`` of a snapshot."""
    data = np.empty(n_bytes, np.uint8)
    at = 0
    for layer in layers:
        ring, *states = layer.fixed
        filled = min(position, layer.window) * ring.shape[1]
        data[at : at + filled] = ring.reshape(-1)[:filled]
        data[at + filled : at + WINDOW * ring.shape[1]] = 0
        at += WINDOW * ring.shape[1]
        for state in states:
            data[at : at + state.nbytes] = state.reshape(-1)
            at += state.nbytes
    assert at == n_bytes
    data.flags.writeable = False
    return data[:]  # of a view, nobody can make it writeable again


def thaw(data: NDArray[np.uint8], layers: tuple[LayerCache, ...], position: int) -> None:
    """Put what :func:`freeze` took back into layers, whose ring may have another length.

    Rings are shorter than a window only where the capacity is, so that no token is in two slots.
    """
    at = 0
    for layer in layers:
        ring, *states = layer.fixed
        n_rows, row_bytes = min(position, layer.window), ring.shape[1]
        ring[:n_rows] = data[at : at + n_rows * row_bytes].reshape(n_rows, row_bytes)
        at += WINDOW * row_bytes
        for state in states:
            state[:] = data[at : at + state.nbytes].reshape(state.shape)
            at += state.nbytes
    assert at == data.nbytes
