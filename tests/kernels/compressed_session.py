"""A compressor fed with a session's tokens, however they are cut into calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlx_dsv4 import ops, reference


@dataclass(frozen=True)
class Spans:
    """How a compressor makes rows; ``c`` is 2 where spans overlap."""

    ratio: int
    c: int
    dim: int
    rope_dim: int
    first_row: int = 3

    def __str__(self) -> str:
        return f"ratio{self.ratio}-c{self.c}-D{self.dim}-R{self.rope_dim}"

    def numbers(self, start: int, round_trip: str = "none") -> dict:
        return {
            "start": start,
            "ratio": self.ratio,
            "first_row": self.first_row,
            "eps": 1e-6,
            "round_trip": round_trip,
        }


# Compressed rows of ratio-4 and ratio-128 layers, and index rows.
V4_FLASH_SPANS = [
    Spans(ratio=4, c=2, dim=512, rope_dim=64),
    Spans(ratio=128, c=1, dim=512, rope_dim=64),
    Spans(ratio=4, c=2, dim=128, rope_dim=64),
]


@dataclass(frozen=True)
class Arrays:
    """What the projections give for every token of a session, and the compressor's weights."""

    spans: Spans
    value: np.ndarray
    gate: np.ndarray
    ape: np.ndarray
    norm: np.ndarray

    def step(self, start: int, n_tokens: int) -> list[np.ndarray]:
        """The array arguments of one call, up to the state."""
        end, ratio = start + n_tokens, self.spans.ratio
        closed = np.arange(start // ratio, end // ratio)
        frequencies = reference.inverse_frequencies(self.spans.rope_dim, 1.6e5)
        rotation = reference.rotation_table(closed * ratio, frequencies)
        return [self.value[start:end], self.gate[start:end], self.ape, self.norm, rotation]


def make_arrays(spans: Spans, n_tokens: int, seed: int = 0) -> Arrays:
    rng, width = np.random.default_rng(seed), spans.c * spans.dim
    value, gate = rng.standard_normal((n_tokens, 2, width)).astype(np.float32).swapaxes(0, 1)
    ape = np.random.default_rng(1).standard_normal((spans.ratio, width)).astype(np.float32)
    norm = np.random.default_rng(2).uniform(0.5, 1.5, spans.dim).astype(np.float32)
    return Arrays(spans, value.copy(), gate.copy(), ape, norm)


def run(
    arrays: Arrays,
    chunks: Sequence[int],
    *,
    dtype: mx.Dtype = mx.float32,
    round_trip: str = "none",
    view: Callable[[mx.array], mx.array] = lambda a: a,
) -> tuple[mx.array, mx.array, mx.array]:
    """State and rows after a session's tokens, appended in chunks; unwritten rows hold NaN."""
    spans = arrays.spans
    state = reference.empty_state(spans.ratio, spans.c * spans.dim, spans.dim)
    n_rows = spans.first_row + sum(chunks) // spans.ratio
    held = (*map(mx.array, state), mx.full((n_rows, spans.dim), np.nan, dtype))
    held = tuple(a.astype(mx.float32) for a in held[:2]) + held[2:]
    start = 0
    for n_tokens in chunks:
        step = [view(mx.array(a)) for a in arrays.step(start, n_tokens)]
        held = ops.compressor_append(*step, *held, **spans.numbers(start, round_trip))
        start += n_tokens
    mx.eval(held)
    return held
