"""Timing, ceilings and reports shared by the benchmarks.

Figures mean something beside the machine's ceiling of the same run, so every report carries
one: the bytes a call must move over the copy bandwidth measured in this process.
"""

import json
import platform
import statistics
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_dsv4 import _ext

WARMUP = 3


def time_us(call: Callable[[], Any], *, repeats: int = 20) -> list[float]:
    """Microseconds of ``mx.eval(call())``, one sample per repeat, after three warm-up calls."""
    samples = []
    for _ in range(repeats + WARMUP):
        start = time.perf_counter_ns()
        mx.eval(call())
        samples.append((time.perf_counter_ns() - start) / 1e3)
    return samples[WARMUP:]


@cache
def read_gb_s() -> float:
    """Read bandwidth of this machine in GB/s: every thread sums its own 256 MiB array."""
    arrays = [np.ones(2**25) for _ in range(_ext.num_threads())]
    best = 0.0
    for _ in range(3):
        threads = [threading.Thread(target=a.sum) for a in arrays]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, sum(a.nbytes for a in arrays) / (time.perf_counter() - start) / 1e9)
    return best


def report(kernel: str, case: str, samples: list[float], *, n_bytes: int, n_flops: int = 0) -> None:
    """Print one line for people and one JSON line for files.

    Args:
        kernel: Op name.
        case: Shape of this call, in words.
        samples: Microseconds per call.
        n_bytes: Bytes one call must read and write at least.
        n_flops: Floating-point operations of one call (a multiply-add is two).
    """
    median = statistics.median(samples)
    gb_s, gflop_s = n_bytes / median / 1e3, n_flops / median / 1e3
    share = gb_s / read_gb_s()
    print(
        f"{kernel:<20} {case:<28} {median:10.1f} us {gb_s:7.2f} GB/s "
        f"({share:5.0%} of read bandwidth) {gflop_s:7.1f} GFLOP/s"
    )
    print(
        json.dumps(
            {
                "kernel": kernel,
                "case": case,
                "us_p50": round(median, 2),
                "us_min": round(min(samples), 2),
                "bytes": n_bytes,
                "flops": n_flops,
                "read_gb_s": round(read_gb_s(), 2),
                "isa": _ext.isa(),
                "threads": _ext.num_threads(),
                "machine": platform.machine(),
                "mlx": mx.__version__,
            }
        )
    )
