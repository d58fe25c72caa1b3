"""Products with matrices stored as GGUF blocks."""

import numpy as np

import gguf
from mlx_dsv4.reference.types import Array


def dequantize(weight: Array, format: str) -> Array:
    """Raw blocks ``[..., row_bytes]`` uint8 -> float32 ``[..., K]``, by the ``gguf`` package."""
    return gguf.quants.dequantize(weight, gguf.GGMLQuantizationType[format.upper()])


def matmul(x: Array, weight: Array, *, format: str, groups: int = 1) -> Array:
    """``x @ W.T`` with W decoded from its blocks; row n multiplies its own group of x.

    x ``[T, groups * K]``, weight ``[N, row_bytes]`` uint8 -> ``[T, N]``; output n uses columns
    ``[g * K, (g + 1) * K)`` of x with ``g = n // (N / groups)``.
    """
    w = dequantize(weight, format).astype(np.float64).reshape(groups, -1, x.shape[1] // groups)
    parts = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    return np.einsum("tgk,gnk->tgn", parts, w).reshape(x.shape[0], -1)


def embed(tokens: Array, weight: Array, *, format: str) -> Array:
    """The decoded rows of ``weight`` ``[V, row_bytes]`` that ``tokens`` ``[T]`` name."""
    return dequantize(weight[tokens], format)
