"""Inputs of attention, what it must compute, and how far an op may be from that."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from arrays import EPS, to_numpy
from mlx_dsv4 import ops, reference

SPREAD = 5  # standard deviations that a sum of independent rounding errors may be off


@dataclass(frozen=True)
class Case:
    n_tokens: int
    heads: int
    dim: int
    start: int
    ratio: int
    k: int = 0  # 0 = every visible row
    window: int = 128
    rope_dim: int = 64
    dtype: mx.Dtype = mx.float32

    def __str__(self) -> str:
        name = f"T{self.n_tokens}-H{self.heads}-D{self.dim}-s{self.start}-r{self.ratio}"
        dtype = str(self.dtype).removeprefix("mlx.core.")
        return f"{name}-k{self.k}-W{self.window}-{dtype}"

    @property
    def n_rows(self) -> int:
        return reference.visible_rows(self.start + self.n_tokens - 1, self.ratio or 2**30)


def make_selected(case: Case, rng: np.random.Generator) -> np.ndarray:
    """Ascending visible rows with -1 between them."""
    selected = np.full((case.n_tokens, case.k), -1, np.int32)
    for t in range(case.n_tokens):
        visible = (case.start + t + 1) // case.ratio
        chosen = rng.permutation(visible)[: case.k]
        where = np.sort(rng.permutation(case.k)[: chosen.size])
        selected[t, where] = np.sort(chosen)
    return selected


def rotation_at(positions: np.ndarray, rope_dim: int) -> mx.array:
    frequencies = reference.inverse_frequencies(rope_dim, 1e4)
    return mx.array(reference.rotation_table(positions, frequencies))


def make_inputs(case: Case, seed: int = 0) -> dict[str, Any]:
    """Arguments of the op; every row that no query may read is NaN."""
    rng = np.random.default_rng(seed)
    kv = rng.standard_normal((case.window + case.n_rows + 5, case.dim))
    kv[case.window + case.n_rows :] = np.nan
    for slot in range(case.start, case.window):
        kv[slot] = np.nan  # not written yet
    kv[case.start % case.window] = np.nan  # the oldest position, which falls out of the window

    def rows_of(a: np.ndarray) -> mx.array:
        return mx.array(a.astype(np.float32)).astype(case.dtype)

    return {
        "q": rows_of(rng.standard_normal((case.n_tokens, case.heads, case.dim))),
        "rows": rows_of(rng.standard_normal((case.n_tokens, case.dim))),
        "attention_kv": rows_of(kv),
        "sinks": mx.array(2 + rng.standard_normal(case.heads).astype(np.float32)),
        "rotation": rotation_at(case.start + np.arange(case.n_tokens), case.rope_dim),
        "selected": mx.array(make_selected(case, rng)) if case.k else None,
        "start": case.start,
        "window": case.window,
        "ratio": case.ratio,
    }


def expected_output(inputs: dict[str, Any], **changes: Any) -> np.ndarray:
    plain = {
        name: to_numpy(value) if isinstance(value, mx.array) else value
        for name, value in (inputs | changes).items()
    }
    return reference.attention(**plain, dtype="float32")


def output_bound(inputs: dict[str, Any], expected: np.ndarray) -> np.ndarray:
    """How far the op may be from exact arithmetic.

    A logit is off by ``e``: the spread of D + 2 roundings of sums of |q| |k| / sqrt(D), and the
    rounding of the difference from the maximum. That changes a weight by e relatively, the exp
    by 2 units more; sums over n rows add the spread of n roundings. Weights occur in numerator and
    denominator, and a mean of rows moves by at most that share of the largest row value.
    The rotation mixes two values: sqrt(2), and 3 roundings.
    """
    q, kv = np.abs(to_numpy(inputs["q"])), np.abs(to_numpy(inputs["attention_kv"]))
    rows = np.abs(to_numpy(inputs["rows"]))
    readable = np.concatenate([rows, kv[~np.isnan(kv).any(1)]])
    dim, n = q.shape[2], readable.shape[0]
    sums = (q @ readable.T).max(-1) / np.sqrt(dim)
    e = SPREAD * np.sqrt(dim + 2) * EPS * sums + EPS * 2 * sums
    share = 2 * (e + 4 * EPS + SPREAD * np.sqrt(n) * EPS) + 5 * EPS
    half_unit = 2.0**-8 if inputs["q"].dtype == mx.bfloat16 else EPS
    return np.sqrt(2) * share[..., None] * readable.max() + half_unit * np.abs(expected)


def split(inputs: dict[str, Any], chunks: list[int]) -> mx.array:
    """The same tokens in chunks, with the ring written between them by the reference."""
    kv, outputs, first = to_numpy(inputs["attention_kv"]), [], 0
    dtype = inputs["q"].dtype
    for n in chunks:
        part = slice(first, first + n)
        start = inputs["start"] + first
        selected = inputs["selected"]
        outputs.append(
            ops.attention(
                inputs["q"][part],
                inputs["rows"][part],
                mx.array(kv.astype(np.float32)).astype(dtype),
                inputs["sinks"],
                inputs["rotation"][part],
                selected=None if selected is None else selected[part],
                start=start,
                window=inputs["window"],
                ratio=inputs["ratio"],
            )
        )
        rows = to_numpy(inputs["rows"][part])
        kv = reference.window_write(kv, rows, start=start, window=inputs["window"])
        first += n
    return mx.concatenate(outputs)
