"""Round trips through the small number formats the checkpoint was trained with.

Every function takes and returns values, not codes: the result is what reading the stored
number back would give. Scales are the smallest power of two that lets the largest magnitude
fit, found by exact comparison.
"""

import numpy as np

from mlx_dsv4.reference.types import Array

FP8_MAX = 448.0
FP4_MAX = 6.0
FP8_BLOCK = 64
FP4_BLOCK = 32


def to_bfloat16(x: Array) -> Array:
    """Nearest bfloat16, ties to even, as float64."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32)
    values = rounded.view(np.float32).astype(np.float64)
    return np.where(np.isnan(x), np.nan, values)


def to_row_dtype(x: Array, dtype: str) -> Array:
    """Values as a row of ``dtype`` ("bfloat16" or "float32") holds them."""
    if dtype == "bfloat16":
        return to_bfloat16(x)
    if dtype == "float32":
        return np.asarray(x, np.float32).astype(np.float64)
    raise ValueError(f"row dtype must be bfloat16 or float32; got {dtype}")


def _scale(blocks: Array, smallest: float, largest_code: float) -> Array:
    """Smallest power of two s with ``max(absmax, smallest) <= largest_code * s``, per block."""
    absmax = np.maximum(np.abs(blocks).max(-1, keepdims=True), smallest)
    mantissa, exponent = np.frexp(absmax / largest_code)  # absmax in float64: exact enough
    scale = np.ldexp(1.0, exponent - (mantissa == 0.5))
    return np.asarray(np.where(largest_code * scale < absmax, 2 * scale, scale))


def fp8_round_trip(x: Array) -> Array:
    """E4M3FN with one power-of-two scale per 64 values of the last axis.

    scale = 2^ceil(log2(max(absmax, 1e-4) / 448)); nearest, ties to even; clamped to ±448.
    """
    blocks = np.asarray(x, np.float64).reshape(*x.shape[:-1], -1, FP8_BLOCK)
    scale = _scale(blocks, np.float64(np.float32(1e-4)), FP8_MAX)
    scaled = blocks / scale
    _, exponent = np.frexp(scaled)
    step = np.ldexp(1.0, np.maximum(exponent - 1, -6) - 3)
    codes = np.clip(np.rint(scaled / step) * step, -FP8_MAX, FP8_MAX)
    return (codes * scale).reshape(x.shape)


def fp4_round_trip(x: Array) -> Array:
    """E2M1 with one power-of-two scale per 32 values of the last axis, ties to even."""
    blocks = np.asarray(x, np.float64).reshape(*x.shape[:-1], -1, FP4_BLOCK)
    scale = _scale(blocks, 6 * 2.0**-126, FP4_MAX)
    magnitude = np.abs(blocks / scale)
    code = np.select(
        [
            magnitude <= 0.25,
            magnitude < 0.75,
            magnitude <= 1.25,
            magnitude < 1.75,
            magnitude <= 2.5,
            magnitude < 3.5,
            magnitude <= 5,
        ],
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0],
        6.0,
    )
    return (np.copysign(code, blocks) * scale).reshape(x.shape)


def hadamard(x: Array) -> Array:
    """Sylvester-ordered Walsh-Hadamard transform of the last axis, times ``1/sqrt(n)``."""
    n = x.shape[-1]
    if n & (n - 1):
        raise ValueError(f"hadamard needs a power of two; got {n}")
    y = np.asarray(x, np.float64)
    half = 1
    while half < n:
        pairs = y.reshape(*x.shape[:-1], -1, 2, half)
        y = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], -2)
        y = y.reshape(x.shape)
        half *= 2
    return y / np.sqrt(n)


def round_trip(x: Array, kind: str, rope_dim: int) -> Array:
    """The round trip of one kind of row, applied after RoPE.

    "none": nothing. "fp8": FP8 on all but the last ``rope_dim`` values (window and compressed
    rows). "hadamard_fp4": Hadamard transform, then FP4, on all values (index rows and queries).
    """
    if kind == "none":
        return x
    if kind == "fp8":
        plain = x.shape[-1] - rope_dim
        return np.concatenate([fp8_round_trip(x[..., :plain]), x[..., plain:]], -1)
    if kind == "hadamard_fp4":
        return fp4_round_trip(hadamard(x))
    raise ValueError(f"round_trip must be none, fp8 or hadamard_fp4; got {kind}")
