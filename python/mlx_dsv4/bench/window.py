"""Window rows at V4-Flash's 512 dims, and a pipelined decode step over a 64 MiB buffer.

Rows are bound by reading the latents and writing the rows. A decode step writes one row and reads
640; the functional update of MLX copies the buffer whenever an earlier reader is still in flight,
window_write never does. Both run here, and their last readers must agree.
"""

import time
from collections.abc import Callable
from functools import partial

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.machine import time_us

DIM, PAIRS, WINDOW = 512, 32, 128
BUFFER_ROWS = 2**16  # 64 MiB of bfloat16
READ_ROWS = WINDOW + 512  # what attention reads per token
STEPS = 40
ROWS = mx.bfloat16

Write = Callable[[mx.array, mx.array, int, mx.array], mx.array]


def measure_rows(report: Report) -> None:
    norm = mx.random.normal((DIM,))
    for n_tokens in (1, 128, 2048):
        kv = mx.random.normal((n_tokens, DIM))
        rotation = mx.random.normal((n_tokens, PAIRS, 2))
        mx.eval(kv, norm, rotation)
        for round_trip in ("none", "fp8"):
            call = partial(
                ops.window_rows, kv, norm, rotation, eps=1e-6, round_trip=round_trip, dtype=ROWS
            )
            samples = time_us(call)
            n_bytes = n_tokens * (4 * DIM + 8 * PAIRS + 2 * DIM)
            report("window_rows", f"T{n_tokens} {round_trip}", samples, n_bytes=n_bytes)


def in_place(buffer: mx.array, row: mx.array, pos: int, reader: mx.array) -> mx.array:
    return ops.window_write(buffer, row, start=pos, window=WINDOW, after=[reader])


def functional(buffer: mx.array, row: mx.array, pos: int, _reader: mx.array) -> mx.array:
    return mx.slice_update(buffer, row, mx.array([pos % WINDOW]), axes=[0])


def read(buffer: mx.array) -> mx.array:
    """Takes about as long as attention: the step that follows is queued meanwhile."""
    return mx.exp(buffer[:READ_ROWS].astype(mx.float32)).sum()


def decode(write: Write) -> tuple[list[float], int, object]:
    """Microseconds of each step, most bytes that the steps held, what the last reader saw.

    Each step is queued before the result of the one before is waited for.
    """
    buffer = mx.zeros((BUFFER_ROWS, DIM), mx.bfloat16)
    mx.eval(buffer)
    reader = read(buffer)
    samples = []
    others_bytes = mx.get_active_memory() - buffer.nbytes
    mx.reset_peak_memory()
    for pos in range(STEPS):
        start = time.perf_counter_ns()
        row = mx.full((1, DIM), pos / STEPS, dtype=mx.bfloat16)
        buffer = write(buffer, row, pos, reader)
        previous, reader = reader, read(buffer)
        mx.async_eval(reader, buffer)
        previous.item()
        samples.append((time.perf_counter_ns() - start) / 1e3)
    last = reader.item()
    return samples, mx.get_peak_memory() - others_bytes, last


def measure_pipelined_decode(report: Report) -> None:
    seen = []
    for name, write in (("window_write", in_place), ("mx.slice_update", functional)):
        samples, peak_bytes, last = decode(write)
        seen.append(last)
        report(
            name,
            "decode step",
            samples,
            n_bytes=READ_ROWS * DIM * 2,
            memory={"peak": peak_bytes},
        )
        if write is in_place and peak_bytes >= 2 * BUFFER_ROWS * DIM * 2:
            raise AssertionError(f"window_write copied the buffer: {peak_bytes} bytes were held")
    if seen[0] != seen[1]:
        raise AssertionError(f"the two ways disagree: {seen}")


def run(report: Report) -> None:
    measure_rows(report)
    measure_pipelined_decode(report)
