"""Moving values between MLX and NumPy, and comparing them, for the kernel tests."""

import mlx.core as mx
import numpy as np

EPS = 2.0**-24  # half a unit in the last place of a float32 in [1, 2)


def to_numpy(a: mx.array) -> np.ndarray:
    """Any float array as float64; integers as they are."""
    if mx.issubdtype(a.dtype, mx.floating):
        return np.array(a.astype(mx.float32)).astype(np.float64)
    return np.array(a)


def same_bits(a: mx.array, b: mx.array) -> bool:
    """Equal shape, dtype and bits; NaN equals NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and bytes(a) == bytes(b)


def strided(a: mx.array) -> mx.array:
    """The same values as a view whose last axis is not contiguous."""
    return mx.repeat(a, 2, axis=-1)[..., ::2]


def shifted(a: mx.array, start: int = 1) -> mx.array:
    """The same values as a row-contiguous view that begins `start` elements into its buffer."""
    view = mx.concatenate([mx.zeros(start, a.dtype), a.reshape(-1)])[start:].reshape(a.shape)
    mx.eval(view)
    return view
