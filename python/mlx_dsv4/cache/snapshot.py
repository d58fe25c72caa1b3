"""A position of a session as a value: what its cache would otherwise overwrite."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache.fingerprint import Fingerprint
from mlx_dsv4.cache.layer import LayerCache
from mlx_dsv4.cache.timeline import Mark


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
        window: Ring rows of each layer in ``data``.
        data: ``[n_bytes]`` uint8, read-only: for each layer the window rows, then the values and
            scores of its states.
    """

    position: int
    fingerprint: Fingerprint = field(repr=False)
    mark: Mark = field(repr=False)
    window: int = field(repr=False)
    data: NDArray[np.uint8] = field(repr=False)

    @property
    def n_bytes(self) -> int:
        return self.data.nbytes


def freeze(layers: tuple[LayerCache, ...], position: int) -> NDArray[np.uint8]:
    """The fixed part of layers at a position, as one read-only array.

    Slots of the ring that no token has reached are zero.
    """
    sizes = [part.nbytes for layer in layers for part in layer.fixed]
    data = np.empty(sum(sizes), np.uint8)
    at = 0
    for layer in layers:
        ring, *states = layer.fixed
        filled = min(position, layer.window) * ring.shape[1]
        data[at : at + filled] = ring.reshape(-1)[:filled]
        data[at + filled : at + ring.nbytes] = 0
        at += ring.nbytes
        for state in states:
            data[at : at + state.nbytes] = state.reshape(-1)
            at += state.nbytes
    data.flags.writeable = False
    return data


def thaw(
    data: NDArray[np.uint8], window: int, layers: tuple[LayerCache, ...], position: int
) -> None:
    """Put the fixed part back, into layers whose ring may be shorter or longer.

    Args:
        data: From :func:`freeze`.
        window: Ring rows in ``data``. Where they differ from the layers', no position has
            reached the end of either ring.
        layers: Written in place.
        position: That ``data`` was frozen at.
    """
    at = 0
    for layer in layers:
        ring, *states = layer.fixed
        n_rows, row_bytes = min(position, layer.window), ring.shape[1]
        ring[:n_rows] = data[at : at + n_rows * row_bytes].reshape(n_rows, row_bytes)
        at += window * row_bytes
        for state in states:
            state[:] = data[at : at + state.nbytes].reshape(state.shape)
            at += state.nbytes
    assert at == data.nbytes
