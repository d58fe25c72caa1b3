"""Routed experts: a clamped SwiGLU per chosen expert, summed with the router's weights."""

import numpy as np

from mlx_dsv4.reference.matmul import dequantize
from mlx_dsv4.reference.types import Array, sigmoid


def experts(
    x: Array,
    ids: Array,
    weights: Array,
    gate: Array,
    up: Array,
    down: Array,
    *,
    formats: tuple[str, str, str],
    clamp: float,
) -> Array:
    """``sum_e weight_e * down_e (silu(min(gate_e x, clamp)) * clip(up_e x, ±clamp))``.

    Terms are added in ascending order of the expert id, so the order of ``ids`` does not matter;
    an id that stands twice counts twice.

    x ``[T, K]``, ids ``[T, k]`` int32, weights ``[T, k]``, gate and up ``[E, F, row_bytes]``
    uint8, down ``[E, K, row_bytes]`` uint8 -> ``[T, K]``.
    """
    out = np.zeros(x.shape, np.float64)
    x = x.astype(np.float64)
    for e in np.unique(ids):
        w_gate, w_up, w_down = (
            dequantize(w[e], format).astype(np.float64)
            for w, format in zip((gate, up, down), formats, strict=True)
        )
        total = np.where(ids == e, weights, 0).sum(1)
        used = np.flatnonzero((ids == e).any(1))
        g = np.minimum(x[used] @ w_gate.T, clamp)
        u = np.clip(x[used] @ w_up.T, -clamp, clamp)
        out[used] += total[used, None] * ((g * sigmoid(g) * u) @ w_down.T)
    return out
