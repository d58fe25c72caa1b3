"""What a cache answers from, as bytes to compare, and the tokens that fill it."""

from functools import cache as memoised

import numpy as np

from mlx_dsv4.cache import Cache
from mlx_dsv4.ops import data_pointer

VOCABULARY = 1024  # of the tiny models
LONGEST = 1024


def readable(cache: Cache) -> list[bytes]:
    """The bytes of every row and state that a later step may read.

    A branch that has not written yet gets buffers of its own by being looked at; see
    :func:`readable_unchanged`.
    """
    parts = []
    for layer in cache.layers:
        rows = cache.position // layer.ratio if layer.ratio else 0
        ring = min(cache.position, layer.window)
        parts += [layer.attention_kv[:ring], layer.attention_kv[layer.window :][:rows]]
        if layer.indexer_kv is not None:
            parts.append(layer.indexer_kv[:rows])
        parts += [a for state in (layer.compressor, layer.indexer) if state for a in state]
    return [bytes(part) for part in parts]


def readable_unchanged(cache: Cache) -> list[bytes]:
    """:func:`readable` of a branch that goes on reading the rows of another cache."""
    return readable(cache if cache.held_bytes() else cache.branch(cache.snapshot()))


def pointers(cache: Cache) -> list[int]:
    """Where the buffers of a cache are; they move when it copies them."""
    return [data_pointer(handle) for handle in cache.handles()]


@memoised
def _first_stream() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, LONGEST)


def stream_tokens(stream: int, start: int, end: int) -> list[int]:
    """Tokens of the positions ``[start, end)``; no two streams agree at any position."""
    tokens = (_first_stream()[start:end] + 97 * stream) % VOCABULARY
    return [int(token) for token in tokens]
