"""Packed matrices and bounds of products, for the kernel tests."""

import numpy as np

import gguf
from arrays import EPS

FORMATS = ("f32", "f16", "bf16", "q8_0", "mxfp4")
ELEMENTS = {"q8_0": 32, "mxfp4": 32}


def pack(values: np.ndarray, format: str) -> np.ndarray:
    """Values ``[..., K]`` as raw blocks ``[..., row_bytes]`` uint8, by the gguf package."""
    rows = values.reshape(-1, values.shape[-1]).astype(np.float32)
    blocks = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[format.upper()])
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(*values.shape[:-1], -1)


def random_rows(shape: tuple[int, ...], format: str, seed: int = 0) -> np.ndarray:
    """Raw blocks of normally distributed values of ``shape`` ``[..., K]``."""
    return pack(np.random.default_rng(seed).standard_normal(shape), format)


def product_bound(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Largest error of ``x @ w.T``, per element.

    A term goes through at most ceil(K / 16) roundings in its lane and 4 when the lanes are
    added, so the error is gamma_n times the sum of magnitudes with n = ceil(K / 16) + 4.
    """
    n = -(-x.shape[-1] // 16) + 4
    gamma = n * EPS / (1 - n * EPS)
    return np.asarray(gamma * (np.abs(x, dtype=np.float64) @ np.abs(w, dtype=np.float64).T))
