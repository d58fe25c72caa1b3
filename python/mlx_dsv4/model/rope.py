"""Rotation tables of a step: cosine and sine of every rotated pair, for every layer kind."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache import Step
from mlx_dsv4.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Rotations:
    """The tables of one step in layers of one ratio.

    tokens: ``[T, R/2, 2]`` float32, at the step's positions.
    rows: ``[n closed, R/2, 2]``, at the first position of each span the step closes.
    """

    tokens: mx.array
    rows: mx.array


class Rope:
    """Frequencies of the two kinds of layer: plain where the ratio is 0, YaRN elsewhere.

    Angles are the float32 products of position and frequency, as in the official code; cosine
    and sine are taken in float64, so that no shader's precision at a million radians matters.
    """

    def __init__(self, config: ModelConfig) -> None:
        stretched = _frequencies(config.rope_dim, config.compress_rope_base)
        share = _interpolated_share(config)
        yarn = stretched * (1 - share) + stretched / config.yarn_factor * share
        self._yarn: NDArray[np.float32] = yarn.astype(np.float32)
        plain = _frequencies(config.rope_dim, config.rope_base)
        self._plain: NDArray[np.float32] = plain.astype(np.float32)

    def rotations(self, step: Step) -> dict[int, Rotations]:
        """The tables of every ratio that occurs in the step."""
        positions = np.arange(step.start, step.start + step.n_tokens)
        tables: dict[int, Rotations] = {}
        for ratio, span in step.spans.items():
            first, count = span.compressed_start, span.compressed_count
            rows = np.arange(first, first + count) * ratio
            frequencies = self._yarn if ratio else self._plain
            tables[ratio] = Rotations(_table(positions, frequencies), _table(rows, frequencies))
        return tables


def _frequencies(rope_dim: int, base: float) -> NDArray[np.float64]:
    return np.power(base, -np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim)


def _interpolated_share(config: ModelConfig) -> NDArray[np.float64]:
    """How far each pair is divided by the YaRN factor: 0 not at all, 1 wholly.

    Pairs that turn more than ``yarn_beta_fast`` times in the original context are left alone,
    those that turn less than ``yarn_beta_slow`` times are divided, with a ramp between.
    """
    dim, log_base = config.rope_dim, np.log(config.compress_rope_base)
    turns = np.array([config.yarn_beta_fast, config.yarn_beta_slow])
    pairs = dim * np.log(config.yarn_original_context / (2 * np.pi * turns)) / (2 * log_base)
    low, high = max(np.floor(pairs[0]), 0.0), min(np.ceil(pairs[1]), dim - 1.0)
    ramp: NDArray[np.float64] = (np.arange(dim // 2, dtype=np.float64) - low) / max(
        high - low, 1e-3
    )
    return ramp.clip(0.0, 1.0)


def _table(positions: NDArray[np.int64], frequencies: NDArray[np.float32]) -> mx.array:
    angles = (positions[:, None].astype(np.float32) * frequencies).astype(np.float64)
    return mx.array(np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32))
