"""Cases, inputs and error bounds of the routed experts, for their tests."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from arrays import EPS
from blocks import product_bound
from mlx_dsv4 import ops, reference
from mlx_dsv4.gguf.random_rows import random_rows

Formats = tuple[str, str, str]


@dataclass(frozen=True)
class Case:
    n_tokens: int
    n_experts: int
    used: int
    dim: int
    hidden: int
    formats: Formats = ("f32", "f32", "f32")
    clamp: float = 10.0

    def __str__(self) -> str:
        return f"T{self.n_tokens}-E{self.n_experts}-k{self.used}-{'-'.join(self.formats)}"


@dataclass(frozen=True)
class Inputs:
    x: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray

    def arrays(self) -> list[mx.array]:
        return [mx.array(a) for a in vars(self).values()]


def make(case: Case, seed: int = 0) -> Inputs:
    """Distinct ids per token, weights about 1 / k, hidden values that reach the clamp at times."""
    rng = np.random.default_rng(seed)
    order = rng.permuted(np.tile(np.arange(case.n_experts), (case.n_tokens, 1)), axis=1)
    gate, up, down = case.formats
    return Inputs(
        x=rng.standard_normal((case.n_tokens, case.dim)).astype(np.float32),
        ids=order[:, : case.used].astype(np.int32),
        weights=rng.uniform(0.1, 2 / case.used, (case.n_tokens, case.used)).astype(np.float32),
        gate=random_rows((case.n_experts, case.hidden, case.dim), gate, seed=seed + 1),
        up=random_rows((case.n_experts, case.hidden, case.dim), up, seed=seed + 2),
        down=random_rows((case.n_experts, case.dim, case.hidden), down, seed=seed + 3),
    )


def run(case: Case, inputs: Inputs) -> mx.array:
    out = ops.experts(*inputs.arrays(), formats=case.formats, clamp=case.clamp)
    mx.eval(out)
    return out


def expect(case: Case, inputs: Inputs) -> np.ndarray:
    return reference.experts(**vars(inputs), formats=case.formats, clamp=case.clamp)


def bound(case: Case, inputs: Inputs) -> np.ndarray:
    """Largest error of the output, per element, carried through every stage.

    g and u have the error of a product; clamps do not enlarge it; the slope of silu is at most
    1.1; silu and its product round 8 times; the sum over experts adds one rounding per term.
    """
    total = np.zeros(inputs.x.shape)
    x = inputs.x.astype(np.float64)
    matrices = {
        e: [
            reference.dequantize(w[e], format).astype(np.float64)
            for w, format in zip((inputs.gate, inputs.up, inputs.down), case.formats, strict=True)
        ]
        for e in np.unique(inputs.ids)
    }
    for t, j in np.ndindex(*inputs.ids.shape):
        weight = abs(float(inputs.weights[t, j]))
        w_gate, w_up, w_down = matrices[inputs.ids[t, j]]
        g, u = np.minimum(w_gate @ x[t], case.clamp), np.clip(w_up @ x[t], -case.clamp, case.clamp)
        g_error, u_error = product_bound(x[t], w_gate), product_bound(x[t], w_up)
        silu = g / (1 + np.exp(-g))
        h_error = 1.1 * g_error * (np.abs(u) + u_error) + np.abs(silu) * u_error
        h_error += 8 * EPS * np.abs(silu * u)
        h = np.abs(silu * u) + h_error
        y_error = np.abs(w_down) @ h_error + product_bound(h, w_down)
        total[t] += weight * (y_error + case.used * EPS * (np.abs(w_down) @ h))
    return total


def rows(inputs: Inputs, begin: int, end: int) -> Inputs:
    per_token = {name: getattr(inputs, name)[begin:end] for name in ("x", "ids", "weights")}
    return Inputs(**(vars(inputs) | per_token))
