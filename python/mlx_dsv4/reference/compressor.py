"""Compressor: fold tokens into the open span, close spans into compressed rows."""

import numpy as np

from mlx_dsv4.reference.rope import rotate_tail
from mlx_dsv4.reference.rounding import round_trip as apply_round_trip
from mlx_dsv4.reference.rounding import to_row_dtype
from mlx_dsv4.reference.types import Array, rms_norm


def empty_state(ratio: int, width: int, dim: int) -> tuple[Array, Array]:
    """(value, score) of a session at position 0: values 0, scores -inf.

    ``[8, 2 * dim]`` where spans overlap (width 2 * dim): rows 0..ratio-1 are the previous span,
    the rest the open one. ``[ratio, dim]`` otherwise.
    """
    tokens = 2 * ratio if width == 2 * dim else ratio
    return np.zeros((tokens, width)), np.full((tokens, width), -np.inf)


def compressor_append(
    value: Array,
    gate: Array,
    ape: Array,
    norm: Array,
    rotation: Array,
    state_value: Array,
    state_score: Array,
    rows: Array,
    *,
    start: int,
    ratio: int,
    first_row: int,
    eps: float,
    round_trip: str,
    dtype: str,
) -> tuple[Array, Array, Array]:
    """Append the tokens of positions ``[start, start + T)``, one at a time.

    A token's score is ``gate + ape[pos % ratio]``. When the last token of span s arrives, row
    ``first_row + s`` becomes the per-feature softmax-weighted sum of the span's values, rounded
    to the row dtype, RMS-normed, rotated (position s * ratio: ``rotation[i]`` belongs to the
    i-th span closed by this call) and taken through the round trip. Overlapping spans pool 8
    items: the previous span's columns ``[0, dim)`` and the span's own columns ``[dim, 2 dim)``.
    Afterwards the closed span becomes the previous one and the open span is empty again.

    value, gate ``[T, c * dim]``; ape ``[ratio, c * dim]``; norm ``[dim]``; rows ``[*, dim]``.
    Returns (state_value, state_score, rows).
    """
    state_value, state_score, rows = state_value.copy(), state_score.copy(), rows.copy()
    dim, overlap = rows.shape[1], value.shape[1] == 2 * rows.shape[1]
    closed = 0
    for t in range(value.shape[0]):
        phase = (start + t) % ratio
        slot = phase + ratio if overlap else phase
        state_value[slot] = value[t]
        state_score[slot] = np.asarray(gate[t], np.float32) + np.asarray(ape[phase], np.float32)
        if phase < ratio - 1:
            continue
        row = close(state_value, state_score, norm, rotation[closed], dim, eps, round_trip, dtype)
        rows[first_row + (start + t) // ratio] = row
        closed += 1
        if overlap:
            state_value[:ratio], state_score[:ratio] = state_value[ratio:], state_score[ratio:]
            state_value[ratio:], state_score[ratio:] = 0, -np.inf
        else:
            state_value[:], state_score[:] = 0, -np.inf
    return state_value, state_score, rows


def close(
    state_value: Array,
    state_score: Array,
    norm: Array,
    rotation: Array,
    dim: int,
    eps: float,
    round_trip: str,
    dtype: str,
) -> Array:
    """The compressed row ``[dim]`` of a full state."""
    if state_value.shape[1] == 2 * dim:
        ratio = state_value.shape[0] // 2
        values = np.concatenate([state_value[:ratio, :dim], state_value[ratio:, dim:]])
        scores = np.concatenate([state_score[:ratio, :dim], state_score[ratio:, dim:]])
    else:
        values, scores = state_value, state_score
    weights = np.exp(scores.astype(np.float64) - scores.max(0))
    pooled = (weights * values).sum(0) / weights.sum(0)
    row = rotate_tail(rms_norm(to_row_dtype(pooled, dtype), eps, norm)[None], rotation[None])
    return to_row_dtype(apply_round_trip(row, round_trip, 2 * rotation.shape[0]), dtype)[0]
