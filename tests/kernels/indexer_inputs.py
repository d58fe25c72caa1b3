"""Inputs of the indexer's tests."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

SCALE = 0.5


@dataclass(frozen=True)
class Case:
    n_tokens: int
    heads: int
    dim: int
    start: int
    ratio: int
    dtype: mx.Dtype = mx.float32

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("mlx.core.")
        return f"T{self.n_tokens}-I{self.heads}-D{self.dim}-s{self.start}-r{self.ratio}-{dtype}"

    @property
    def n_rows(self) -> int:
        return (self.start + self.n_tokens) // self.ratio


def make_inputs(case: Case, *, spare: int = 9, seed: int = 0) -> dict[str, mx.array]:
    """q, w and rows; the ``spare`` rows that no token sees are NaN."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((case.n_rows + spare, case.dim))
    rows[case.n_rows :] = np.nan
    return {
        "q": mx.array(
            rng.standard_normal((case.n_tokens, case.heads, case.dim)).astype(np.float32)
        ).astype(case.dtype),
        "w": mx.array(rng.standard_normal((case.n_tokens, case.heads)).astype(np.float32)),
        "rows": mx.array(rows.astype(np.float32)).astype(case.dtype),
    }


def place(case: Case) -> dict[str, int | float]:
    return {"start": case.start, "ratio": case.ratio, "scale": SCALE}
