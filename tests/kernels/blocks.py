"""Packed matrices and bounds of products, for the kernel tests."""

import numpy as np

from arrays import EPS
from mlx_dsv4.gguf.blocks import block_shape
from mlx_dsv4.gguf.random_rows import CODED_FORMATS

FORMATS = ("f32", "f16", "bf16", "q8_0", "mxfp4")
ELEMENTS = {format: block_shape(format)[0] for format in ("q8_0", "mxfp4", *CODED_FORMATS)}


def product_bound(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Largest error of ``x @ w.T``, per element.

    A term goes through at most ceil(K / 16) roundings in its lane and 4 when the lanes are
    added, so the error is gamma_n times the sum of magnitudes with n = ceil(K / 16) + 4.
    """
    n = -(-x.shape[-1] // 16) + 4
    gamma = n * EPS / (1 - n * EPS)
    return np.asarray(gamma * (np.abs(x, dtype=np.float64) @ np.abs(w, dtype=np.float64).T))
