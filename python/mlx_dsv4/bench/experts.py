"""Routed experts at V4-Flash's widths, 6 of 64 experts per token.

One token is bound by reading the blocks of its 6 experts once; many tokens by arithmetic:
6 * T * k * K * F operations. 64 experts are more bytes than any cache holds. For one token in
MXFP4, the same maths of mx ops beside it.
"""

from itertools import cycle

import mlx.core as mx
import numpy as np

from mlx_dsv4 import ops
from mlx_dsv4.bench import composed
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.machine import time_us
from mlx_dsv4.gguf.random_rows import random_rows

EXPERTS, USED, DIM, HIDDEN, CLAMP = 64, 6, 4096, 2048, 10.0
# Of gate and up, and of down: the experts of files that people download.
FORMATS = (("q8_0", "q8_0"), ("mxfp4", "mxfp4"), ("q4_k", "q4_k"), ("iq2_xxs", "q2_k"))


def packed(n_rows: int, k: int, format: str) -> mx.array:
    """Raw blocks of every expert's ``n_rows`` rows; 16 random rows repeat."""
    rows = random_rows((16, k), format, std=1 / 64)
    return mx.array(np.tile(rows, (EXPERTS, n_rows // 16, 1)))


def measure(
    report: Report,
    matrices: tuple[mx.array, mx.array, mx.array],
    formats: tuple[str, str],
    n_tokens: int,
) -> None:
    rng = np.random.default_rng(1)
    expert_bytes = sum(matrix.nbytes for matrix in matrices) // EXPERTS
    x, weights = mx.random.normal((n_tokens, DIM)), mx.full((n_tokens, USED), 1.5 / USED)
    choices = [
        rng.permuted(np.tile(np.arange(EXPERTS, dtype=np.int32), (n_tokens, 1)), axis=1)[:, :USED]
        for _ in range(8)
    ]
    ids = [mx.array(choice) for choice in choices]
    mx.eval(x, weights, ids)
    calls = cycle(ids)
    gate, down = formats
    samples = time_us(
        lambda: ops.experts(
            x, next(calls), weights, *matrices, formats=(gate, gate, down), clamp=CLAMP
        ),
        repeats=16,
    )
    case = f"{gate}/{down} T{n_tokens}"
    n_flops = 6 * n_tokens * USED * DIM * HIDDEN
    chosen = np.mean([np.unique(choice).size for choice in choices])
    report(
        "experts",
        case,
        samples,
        n_bytes=round(chosen * expert_bytes) + 8 * n_tokens * DIM,
        n_flops=n_flops,
    )
    if formats == ("mxfp4", "mxfp4") and n_tokens == 1:
        w_gate, w_up, w_down = (composed.from_mxfp4_blocks(matrix) for matrix in matrices)
        mx.eval(w_gate, w_up, w_down)
        samples = time_us(
            lambda: composed.experts(x, next(calls), weights, w_gate, w_up, w_down, CLAMP),
            repeats=3,
        )
        report("experts of mx ops", case, samples, n_bytes=USED * expert_bytes, n_flops=n_flops)


def run(report: Report) -> None:
    for formats in FORMATS:
        gate, up = packed(HIDDEN, DIM, formats[0]), packed(HIDDEN, DIM, formats[0])
        down = packed(DIM, HIDDEN, formats[1])
        mx.eval(gate, up, down)
        for n_tokens in (1, 4, 128):
            measure(report, (gate, up, down), formats, n_tokens)
