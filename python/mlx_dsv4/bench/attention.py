"""Attention at V4-Flash's 64 heads of 512 dims over 128 window and 512 selected rows.

Bound by arithmetic: 131,072 operations per row and token, against 1 KiB of the row. The second
line is the same maths composed from mx ops, in float32.
"""

import mlx.core as mx
import numpy as np

from mlx_dsv4 import ops
from mlx_dsv4.bench import composed
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.machine import time_us

HEADS, DIM, WINDOW, RATIO, K, CONTEXT = 64, 512, 128, 4, 512, 8192


def measure(report: Report, n_tokens: int) -> None:
    rng = np.random.default_rng(0)
    start = CONTEXT - n_tokens
    n_rows = WINDOW + CONTEXT // RATIO
    q = mx.random.normal((n_tokens, HEADS, DIM)).astype(mx.bfloat16)
    rows = mx.random.normal((n_tokens, DIM)).astype(mx.bfloat16)
    kv = mx.random.normal((n_rows, DIM)).astype(mx.bfloat16)
    sinks, rotation = mx.random.normal((HEADS,)), mx.random.normal((n_tokens, 32, 2))
    chosen = [np.sort(rng.permutation(start // RATIO)[:K]) for _ in range(n_tokens)]
    selected = mx.array(np.array(chosen, np.int32))
    mx.eval(q, rows, kv, sinks, rotation, selected)
    samples = time_us(
        lambda: ops.attention(
            q,
            rows,
            kv,
            sinks,
            rotation,
            selected=selected,
            start=start,
            window=WINDOW,
            ratio=RATIO,
        ),
        repeats=20 if n_tokens == 1 else 3,
    )
    report(
        "attention",
        f"T{n_tokens} {WINDOW}+{K} rows",
        samples,
        n_bytes=n_tokens * (WINDOW + K) * 2 * DIM + 2 * q.nbytes,
        n_flops=4 * HEADS * DIM * (WINDOW + K) * n_tokens,
    )
    if n_tokens == 1:
        listed = mx.concatenate([mx.arange(WINDOW), WINDOW + selected[0]])
        queries, keys = q.astype(mx.float32), kv.astype(mx.float32)
        mx.eval(queries, keys, listed)
        samples = time_us(lambda: composed.attention(queries, keys, sinks, listed), repeats=5)
        report(
            "attention of mx ops",
            f"T{n_tokens} {WINDOW}+{K} rows",
            samples,
            n_bytes=(WINDOW + K) * 4 * DIM,
            n_flops=4 * HEADS * DIM * (WINDOW + K),
        )


def run(report: Report) -> None:
    measure(report, 1)
    measure(report, 512)
