"""Attention of many queries over window rows and compressed rows, with sinks."""

import numpy as np

from mlx_dsv4.reference.indexer import visible_rows
from mlx_dsv4.reference.rope import rotate_tail
from mlx_dsv4.reference.rounding import to_row_dtype
from mlx_dsv4.reference.types import Array, rms_norm


def attention_queries(q: Array, rotation: Array, *, heads: int, eps: float, dtype: str) -> Array:
    """``[T, H * D]`` -> weightless RMSNorm per head, tail RoPE, row dtype -> ``[T, H, D]``."""
    return to_row_dtype(
        rotate_tail(rms_norm(q.reshape(q.shape[0], heads, -1), eps), rotation), dtype
    )


def attention(
    q: Array,
    rows: Array,
    attention_kv: Array,
    sinks: Array,
    rotation: Array,
    *,
    selected: Array | None,
    start: int,
    window: int,
    ratio: int,
    dtype: str,
) -> Array:
    """Softmax over the rows each query may see; the result is rotated back.

    The query at position p sees window positions ``max(0, p - window + 1) .. p``, from the ring
    ``attention_kv[:window]`` before ``start`` and from ``rows`` after, and compressed rows
    ``attention_kv[window + r]``: the ``selected`` ones (-1 = none) or, where that is None, every
    ``r < (p + 1) // ratio`` (none at ratio 0). Rows are keys and values at once. ``sinks[h]``
    enters the maximum and the denominator and adds no value. Scale ``1 / sqrt(D)``.

    q ``[T, H, D]``, rows ``[T, D]``, attention_kv ``[window + N, D]``, sinks ``[H]``,
    rotation ``[T, R/2, 2]``, selected ``[T, K]`` int32 -> ``[T, H, D]`` in the row dtype.
    """
    outputs = []
    for t in range(q.shape[0]):
        pos = start + t
        keys = [
            rows[p - start] if p >= start else attention_kv[p % window]
            for p in range(max(0, pos - window + 1), pos + 1)
        ]
        if selected is not None:
            keys += [attention_kv[window + r] for r in selected[t] if r >= 0]
        elif ratio:
            keys += [attention_kv[window + r] for r in range(visible_rows(pos, ratio))]
        key = np.asarray(keys, np.float64)
        scores = q[t].astype(np.float64) @ key.T / np.sqrt(q.shape[2])
        sink = np.asarray(sinks, np.float64)[:, None]
        top = np.maximum(scores.max(1, keepdims=True), sink)
        weights = np.exp(scores - top)
        outputs.append(weights @ key / (weights.sum(1, keepdims=True) + np.exp(sink - top)))
    return to_row_dtype(rotate_tail(np.stack(outputs), rotation, inverse=True), dtype)
