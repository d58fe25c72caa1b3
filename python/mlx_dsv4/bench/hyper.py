"""Hyper-connections at V4-Flash's 4 streams of 4096.

`hyper_pre` is bound by reading fn once per call (1.5 MiB), `hyper_post` by reading and writing
the streams (64 KiB each way per token). For one token, the same maths of mx ops beside them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.bench import composed
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.machine import time_us

STREAMS, DIM, EPS = 4, 4096, 1e-6
ROWS = (2 + STREAMS) * STREAMS


Op = Callable[..., Any]


def by_name(name: str, op: Op, of_mx_ops: Op, streams: mx.array) -> list[tuple[str, Op]]:
    """The op; for one token the composed one too."""
    one = streams.shape[0] == 1
    return [(name, op), *([(f"{name} of mx ops", of_mx_ops)] if one else [])]


def measure_pre(report: Report, fn: mx.array, streams: mx.array) -> None:
    base, scale, norm = mx.random.normal((ROWS,)), mx.ones(3), mx.ones(DIM)
    mx.eval(base, scale, norm)
    case, n_bytes = f"T{streams.shape[0]}", fn.nbytes + streams.nbytes + streams.nbytes // STREAMS
    for name, op in by_name("hyper_pre", ops.hyper_pre, composed.hyper_pre, streams):
        call = partial(
            op, streams, fn, base, scale, norm, iterations=20, norm_eps=EPS, hyper_eps=EPS
        )
        samples = time_us(call)
        report(name, case, samples, n_bytes=n_bytes, n_flops=2 * ROWS * streams.size)


def measure_head(report: Report, fn: mx.array, streams: mx.array) -> None:
    base, scale, norm = mx.random.normal((STREAMS,)), mx.ones(1), mx.ones(DIM)
    mx.eval(base, scale, norm)
    case, n_bytes = f"T{streams.shape[0]}", fn.nbytes + streams.nbytes + streams.nbytes // STREAMS
    samples = time_us(
        lambda: ops.hyper_head(streams, fn, base, scale, norm, norm_eps=EPS, hyper_eps=EPS)
    )
    report("hyper_head", case, samples, n_bytes=n_bytes, n_flops=2 * STREAMS * streams.size)


def measure_post(report: Report, streams: mx.array) -> None:
    n_tokens = streams.shape[0]
    y = mx.random.normal((n_tokens, DIM))
    post = mx.random.uniform(shape=(n_tokens, STREAMS))
    comb = mx.random.uniform(shape=(n_tokens, STREAMS, STREAMS))
    mx.eval(y, post, comb)
    n_bytes, n_flops = 2 * streams.nbytes + y.nbytes, 2 * (STREAMS + 1) * streams.size
    for name, op in by_name("hyper_post", ops.hyper_post, composed.hyper_post, streams):
        samples = time_us(partial(op, streams, y, post, comb))
        report(name, f"T{n_tokens}", samples, n_bytes=n_bytes, n_flops=n_flops)


def run(report: Report) -> None:
    fn = mx.random.normal((ROWS, STREAMS * DIM)) / (STREAMS * DIM) ** 0.5
    head = mx.contiguous(fn[:STREAMS])
    for n_tokens in (1, 32, 512):
        streams = mx.random.normal((n_tokens, STREAMS, DIM))
        mx.eval(fn, head, streams)
        measure_pre(report, fn, streams)
        measure_post(report, streams)
        measure_head(report, head, streams)
