"""Routed experts at V4-Flash's widths, 6 of 64 experts per token.

One token is bound by reading the blocks of its 6 experts once; many tokens by arithmetic:
6 * T * k * K * F operations. 64 experts are more bytes than any cache holds.
"""

from itertools import cycle

import mlx.core as mx
import numpy as np

import gguf
from mlx_dsv4 import ops
from mlx_dsv4.bench.harness import Report, time_us

EXPERTS, USED, DIM, HIDDEN, CLAMP = 64, 6, 4096, 2048, 10.0
FORMATS = ("q8_0", "mxfp4")


def packed(n_rows: int, k: int, format: str) -> mx.array:
    """Raw blocks of every expert's ``n_rows`` rows; 16 random rows repeat."""
    values = np.random.default_rng(0).standard_normal((16, k)).astype(np.float32) / 64
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[format.upper()])
    return mx.array(np.tile(blocks.view(np.uint8), (EXPERTS, n_rows // 16, 1)))


def measure(
    report: Report, matrices: tuple[mx.array, mx.array, mx.array], format: str, n_tokens: int
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
    formats = (format, format, format)
    samples = time_us(
        lambda: ops.experts(x, next(calls), weights, *matrices, formats=formats, clamp=CLAMP),
        repeats=16,
    )
    chosen = np.mean([np.unique(choice).size for choice in choices])
    report(
        "experts",
        f"{format} T{n_tokens}",
        samples,
        n_bytes=round(chosen * expert_bytes) + 8 * n_tokens * DIM,
        n_flops=6 * n_tokens * USED * DIM * HIDDEN,
    )


def run(report: Report) -> None:
    for format in FORMATS:
        gate, up = packed(HIDDEN, DIM, format), packed(HIDDEN, DIM, format)
        down = packed(DIM, HIDDEN, format)
        mx.eval(gate, up, down)
        for n_tokens in (1, 4, 128):
            measure(report, (gate, up, down), format, n_tokens)
