"""Tail RoPE: interleaved pairs of the last dims, with YaRN on compressed layers."""

import numpy as np

from mlx_dsv4.reference.types import Array


def inverse_frequencies(
    rope_dim: int,
    base: float,
    *,
    factor: float = 1.0,
    original_context: int = 0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Array:
    """Radians per token of each pair, ``[rope_dim / 2]`` float32.

    With ``factor`` > 1 (YaRN) pairs that turn more than ``beta_fast`` times within the original
    context stay, pairs that turn less than ``beta_slow`` times are divided by ``factor``, and
    those between are blended. There is no attention temperature.
    """
    pair = np.arange(rope_dim // 2, dtype=np.float64)
    plain = base ** (-2 * pair / rope_dim)
    if factor == 1.0:
        return plain.astype(np.float32)

    def pair_turning(times: float) -> float:
        turns = original_context / (times * 2 * np.pi)
        return float(rope_dim * np.log(turns) / (2 * np.log(base)))

    low = max(np.floor(pair_turning(beta_fast)), 0)
    high = min(np.ceil(pair_turning(beta_slow)), rope_dim - 1)
    ramp = np.clip((pair - low) / max(high - low, 0.001), 0, 1)
    return (plain * (1 - ramp) + plain / factor * ramp).astype(np.float32)


def rotation_table(positions: Array, frequencies: Array) -> Array:
    """Cosine and sine of every pair at every position, ``[T, rope_dim / 2, 2]`` float32.

    The angle is the float32 product of position and frequency, as in the official code.
    """
    angle = np.asarray(positions, np.float32)[:, None] * np.asarray(frequencies, np.float32)
    angle = angle.astype(np.float64)
    return np.stack([np.cos(angle), np.sin(angle)], -1).astype(np.float32)


def rotate_tail(x: Array, rotation: Array, *, inverse: bool = False) -> Array:
    """Rotate the last ``2 * rotation.shape[-2]`` values of ``x`` ``[T, ..., D]``."""
    pairs = rotation.shape[-2]
    turn = rotation[..., 0].astype(np.float64) + 1j * rotation[..., 1].astype(np.float64)
    turn = np.conj(turn) if inverse else turn
    turn = turn.reshape(turn.shape[0], *(1,) * (x.ndim - 2), pairs)
    tail = np.asarray(x[..., x.shape[-1] - 2 * pairs :], np.float64)
    turned = (tail[..., 0::2] + 1j * tail[..., 1::2]) * turn
    flat = np.stack([turned.real, turned.imag], -1).reshape(tail.shape)
    return np.concatenate([np.asarray(x[..., : x.shape[-1] - 2 * pairs], np.float64), flat], -1)
