"""Rotation tables of steps: cosine and sine of every rotated pair, for every layer kind."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache import Step
from mlx_dsv4.config import ModelConfig


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

    def of_tokens(self, steps: Sequence[Step]) -> dict[int, mx.array]:
        """``[T, R/2, 2]`` float32 by ratio, at the positions of the steps' tokens in a row."""
        positions = np.concatenate([np.arange(s.start, s.start + s.n_tokens) for s in steps])
        return {ratio: _table(positions, self._frequencies(ratio)) for ratio in steps[0].spans}

    def of_closed_rows(self, step: Step) -> dict[int, mx.array]:
        """``[n closed, R/2, 2]`` float32 by ratio, at the first position of each span it closes."""
        tables: dict[int, mx.array] = {}
        for ratio, span in step.spans.items():
            first, count = span.compressed_start, span.compressed_count
            rows = np.arange(first, first + count) * ratio
            tables[ratio] = _table(rows, self._frequencies(ratio))
        return tables

    def _frequencies(self, ratio: int) -> NDArray[np.float32]:
        return self._yarn if ratio else self._plain


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
