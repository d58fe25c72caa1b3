"""Indexer at V4-Flash's 64 heads of 128 dims, 512 of 8K to 262K rows selected.

Bound by arithmetic: 16,384 operations per row and token, against 256 bytes of the row. The last
line of each size is the same maths composed from mx ops.
"""

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.bench import composed
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.machine import time_us

HEADS, DIM, RATIO, K = 64, 128, 4, 512


def measure(report: Report, n_tokens: int, n_rows: int) -> None:
    q = mx.random.normal((n_tokens, HEADS, DIM)).astype(mx.bfloat16)
    w = mx.random.normal((n_tokens, HEADS))
    rows = mx.random.normal((n_rows, DIM)).astype(mx.bfloat16)
    start = RATIO * n_rows - n_tokens
    scores = ops.indexer_scores(q, w, rows, start=start, ratio=RATIO, scale=1.0)
    mx.eval(q, w, rows, scores)
    case = f"T{n_tokens} {n_rows} rows"
    flops = 2 * HEADS * DIM * n_rows * n_tokens
    samples = time_us(
        lambda: ops.indexer_scores(q, w, rows, start=start, ratio=RATIO, scale=1.0), repeats=10
    )
    report("indexer_scores", case, samples, n_bytes=rows.nbytes + scores.nbytes, n_flops=flops)
    samples = time_us(lambda: ops.indexer_topk(scores, start=start, ratio=RATIO, k=K), repeats=10)
    report("indexer_topk", case, samples, n_bytes=scores.nbytes)
    samples = time_us(
        lambda: ops.indexer_select(q, w, rows, start=start, ratio=RATIO, scale=1.0, k=K),
        repeats=10,
    )
    report("indexer_select", case, samples, n_bytes=rows.nbytes, n_flops=flops)
    if n_tokens == 1 and n_rows <= 65_536:
        queries, keys = q.astype(mx.float32), rows.astype(mx.float32)
        mx.eval(queries, keys)
        samples = time_us(lambda: composed.indexer_select(queries, w, keys, K), repeats=2)
        report("select of mx ops", case, samples, n_bytes=keys.nbytes, n_flops=flops)


def run(report: Report) -> None:
    for n_rows in (8_192, 65_536, 262_144):
        measure(report, 1, n_rows)
    measure(report, 64, 8_192)
