"""Compressor at V4-Flash's shapes: a prefill slice of 2,048 tokens, and decode steps.

Bound by reading values and gates once and writing rows; a decode step that closes no span only
writes one slot of the state. Last come spans that mx ops
close, without the round trip.
"""

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.bench import composed
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.machine import time_us

EPS = 1e-6
# name, ratio, c, D, round trip
LAYERS = [
    ("ratio 4", 4, 2, 512, "fp8"),
    ("ratio 128", 128, 1, 512, "fp8"),
    ("indexer", 4, 2, 128, "hadamard_fp4"),
]
PAIRS = 32


def measure(
    report: Report,
    name: str,
    ratio: int,
    c: int,
    dim: int,
    round_trip: str,
    *,
    start: int,
    n: int,
) -> None:
    width, closed = c * dim, (start + n) // ratio - start // ratio
    value, gate = mx.random.normal((n, width)), mx.random.normal((n, width))
    values, scores = mx.zeros((c * ratio, width)), mx.zeros((c * ratio, width))
    rows = mx.zeros(((start + n) // ratio, dim), mx.bfloat16)
    ape, norm = mx.random.normal((ratio, width)), mx.random.normal((dim,))
    rotation = mx.random.normal((closed, PAIRS, 2))
    mx.eval(value, gate, values, scores, rows, ape, norm, rotation)
    samples = time_us(
        lambda: ops.compressor_append(
            value,
            gate,
            ape,
            norm,
            rotation,
            values,
            scores,
            rows,
            start=start,
            ratio=ratio,
            first_row=0,
            eps=EPS,
            round_trip=round_trip,
        )
    )
    n_bytes = n * 2 * width * 4 + closed * dim * 2
    case = f"{name} T{n}" + (" closes a span" if n == 1 and closed else "")
    report("compressor_append", case, samples, n_bytes=n_bytes)


def measure_of_mx_ops(report: Report, ratio: int, c: int, dim: int, n: int) -> None:
    """``n`` tokens that close their spans: scores, pooling, norm and rotation."""
    width, spans = c * dim, max(1, n // ratio)
    value = mx.random.normal((spans * ratio, width))
    gate = mx.random.normal((spans * ratio, width))
    ape, norm = mx.random.normal((ratio, width)), mx.random.normal((dim,))
    rotation = mx.random.normal((spans, PAIRS, 2))
    mx.eval(value, gate, ape, norm, rotation)

    def call() -> mx.array:
        values = value.reshape(spans, ratio, width)
        scores = gate.reshape(spans, ratio, width) + ape
        if c == 2:
            values, scores = composed.overlapped(values), composed.overlapped(scores)
        return composed.close_spans(values, scores, norm, rotation, EPS)

    case = f"ratio {ratio} T{n}" + (" closes a span" if n == 1 else "")
    n_bytes = n * 2 * width * 4 + spans * dim * 2
    report("spans of mx ops", case, time_us(call), n_bytes=n_bytes)


def run(report: Report) -> None:
    for layer in LAYERS:
        ratio = layer[1]
        measure(report, *layer, start=0, n=2048)
        measure(report, *layer, start=ratio - 1, n=1)
        measure(report, *layer, start=ratio, n=1)
    for ratio, c in ((4, 2), (128, 1)):
        for n in (2048, 1):
            measure_of_mx_ops(report, ratio, c, 512, n)
