"""Window rows: the latent of each token, and the ring that keeps the newest of them."""

import numpy as np

from mlx_dsv4.reference.rope import rotate_tail
from mlx_dsv4.reference.rounding import round_trip as apply_round_trip
from mlx_dsv4.reference.rounding import to_row_dtype
from mlx_dsv4.reference.types import Array, rms_norm


def window_rows(
    kv: Array,
    norm: Array,
    rotation: Array,
    *,
    eps: float,
    round_trip: str,
    dtype: str,
) -> Array:
    """RMSNorm, tail RoPE, FP8 round trip ("none" or "fp8"), then the row dtype.

    kv ``[T, D]``, norm ``[D]``, rotation ``[T, R/2, 2]`` -> rows ``[T, D]``.
    """
    rows = rotate_tail(rms_norm(kv, eps, norm), rotation)
    return to_row_dtype(apply_round_trip(rows, round_trip, 2 * rotation.shape[1]), dtype)


def window_write(attention_kv: Array, rows: Array, *, start: int, window: int) -> Array:
    """Put the rows of positions ``[start, start + T)`` into the ring ``attention_kv[:window]``.

    Position p lives in slot ``p % window``; only the newest ``window`` rows are written.
    """
    out = attention_kv.copy()
    first = max(0, rows.shape[0] - window)
    for t in range(first, rows.shape[0]):
        out[(start + t) % window] = rows[t]
    return np.asarray(out)
