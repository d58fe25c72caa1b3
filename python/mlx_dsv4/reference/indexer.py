"""Indexer: score the index rows for each query token and select the best."""

import numpy as np

from mlx_dsv4.reference.rope import rotate_tail
from mlx_dsv4.reference.rounding import round_trip as apply_round_trip
from mlx_dsv4.reference.rounding import to_row_dtype
from mlx_dsv4.reference.types import Array


def visible_rows(pos: int, ratio: int) -> int:
    """Rows readable from position ``pos``: the spans its own token or an earlier one closed."""
    return (pos + 1) // ratio


def indexer_queries(q: Array, rotation: Array, *, heads: int, round_trip: str, dtype: str) -> Array:
    """``[T, I * D]`` -> tail RoPE, round trip ("none" or "hadamard_fp4") -> ``[T, I, D]``."""
    turned = rotate_tail(q.reshape(q.shape[0], heads, -1), rotation)
    return to_row_dtype(apply_round_trip(turned, round_trip, 2 * rotation.shape[1]), dtype)


def indexer_scores(
    q: Array, w: Array, rows: Array, *, start: int, ratio: int, scale: float
) -> Array:
    """``score[t, r] = sum_h relu(q[t, h] . rows[r]) * w[t, h] * scale``.

    q ``[T, I, D]``, w ``[T, I]`` (may be negative), rows ``[capacity, D]`` ->
    ``[T, (start + T) // ratio]``; rows that token t may not see score -inf.
    """
    n_tokens, n_rows = q.shape[0], (start + q.shape[0]) // ratio
    dots = np.einsum("thd,rd->thr", q.astype(np.float64), rows[:n_rows].astype(np.float64))
    weights = np.asarray(w, np.float64) * scale
    scores = np.einsum("thr,th->tr", np.maximum(dots, 0), weights)
    for t in range(n_tokens):
        scores[t, visible_rows(start + t, ratio) :] = -np.inf
    return scores


def indexer_topk(scores: Array, *, start: int, ratio: int, k: int) -> Array:
    """The k best visible rows of each token, ``[T, k]`` int32, ascending, -1 where none is left.

    Highest score first; equal scores: the lower row; NaN after every number.
    """
    selected = np.full((scores.shape[0], k), -1, np.int32)
    for t, row_scores in enumerate(scores):
        visible = row_scores[: visible_rows(start + t, ratio)]
        rows = np.arange(visible.size)
        order = np.lexsort((rows, -np.nan_to_num(visible, nan=0), np.isnan(visible)))
        best = np.sort(order[:k])
        selected[t, : best.size] = best
    return selected


def indexer_select(
    q: Array, w: Array, rows: Array, *, start: int, ratio: int, scale: float, k: int
) -> Array:
    """``indexer_topk(indexer_scores(...))``."""
    scores = indexer_scores(q, w, rows, start=start, ratio=ratio, scale=scale)
    return indexer_topk(scores, start=start, ratio=ratio, k=k)
