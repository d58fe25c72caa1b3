"""A cache without a model: the ops write its rows and states, from the tokens alone."""

from collections.abc import Sequence
from functools import cache as memoised

import mlx.core as mx
import numpy as np

from cache_contents import VOCABULARY, readable
from mlx_dsv4 import ops, reference
from mlx_dsv4.cache import Cache, LayerCache, SpanPlan, plan_cache
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.tiny import tiny_config

CONFIG = tiny_config(ratios=(0, 4, 128), head_dim=32, rope_dim=16, indexer_dim=32)
EPS = 1e-6


def make(capacity_tokens: int, row_dtype: str = "bfloat16") -> Cache:
    return Cache(plan_cache(CONFIG, capacity_tokens, row_dtype=row_dtype))


def append(tokens: Sequence[int], cache: Cache, fail_at: int | None = None) -> None:
    """Append tokens in one call, which fails after ``fail_at`` layers."""
    with cache.step(len(tokens)) as step:
        for index, layer in enumerate(cache.layers[:fail_at]):
            write(np.roll(embedded(CONFIG), index, 0)[list(tokens)], layer, step.spans[layer.ratio])
        if fail_at is not None:
            raise MemoryError("injected")
        mx.eval(cache.handles())


def fresh(tokens: Sequence[int]) -> list[bytes]:
    """What a cache must hold after these tokens: that of a new one which read nothing else."""
    return list(_fresh(tuple(tokens)))


@memoised
def _fresh(tokens: tuple[int, ...]) -> tuple[bytes, ...]:
    cache = make(max(1, len(tokens)))
    if tokens:
        append(tokens, cache)
    return tuple(readable(cache))


@memoised
def embedded(config: ModelConfig) -> np.ndarray:
    """A vector per token, wide enough for every projection."""
    width = 4 * max(config.head_dim, config.indexer_dim)
    rng = np.random.default_rng(1)
    return rng.standard_normal((VOCABULARY, width)).astype(np.float32)


def write(x: np.ndarray, layer: LayerCache, span: SpanPlan) -> None:
    """Fold the tokens into the states, close spans, then put the rows into the ring."""
    if layer.compressor is not None:
        *state, layer.attention_kv = _fold(
            x, layer.compressor, layer.attention_kv, layer.ratio, span, first_row=layer.window
        )
        layer.compressor = (state[0], state[1])
    if layer.indexer is not None:
        *state, layer.indexer_kv = _fold(
            -x, layer.indexer, layer.indexer_kv, layer.ratio, span, first_row=0
        )
        layer.indexer = (state[0], state[1])
    rows = mx.array(x[:, : layer.attention_kv.shape[1]]).astype(layer.attention_kv.dtype)
    layer.attention_kv = ops.window_write(
        layer.attention_kv, rows, start=span.start, window=layer.window
    )


def _fold(
    x: np.ndarray,
    state: tuple[mx.array, mx.array],
    rows: mx.array,
    ratio: int,
    span: SpanPlan,
    first_row: int,
) -> tuple[mx.array, mx.array, mx.array]:
    width, dim = state[0].shape[1], rows.shape[1]
    closed = span.compressed_start + np.arange(span.compressed_count)
    frequencies = reference.inverse_frequencies(CONFIG.rope_dim, CONFIG.rope_base)
    return ops.compressor_append(
        mx.array(x[:, :width]),
        mx.array(x[:, -width:]),
        mx.zeros((ratio, width)),
        mx.ones((dim,)),
        mx.array(reference.rotation_table(closed * ratio, frequencies)),
        *state,
        rows,
        start=span.start,
        ratio=ratio,
        first_row=first_row,
        eps=EPS,
        round_trip="none",
    )
