"""Timing, ceilings and reports shared by the benchmarks.

Figures mean something beside the machine's ceiling of the same run, so every report carries
one: the bytes a call must move over the bandwidth measured in this process.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any, TextIO

import mlx.core as mx

from mlx_dsv4 import ops


def time_us(call: Callable[[], Any], *, repeats: int = 20, warmup: int = 3) -> list[float]:
    """Microseconds of ``mx.eval(call())``, one sample per repeat, after warm-up calls."""
    samples = []
    for _ in range(repeats + warmup):
        start = time.perf_counter_ns()
        mx.eval(call())
        samples.append((time.perf_counter_ns() - start) / 1e3)
    return samples[warmup:]


@cache
def read_gb_s() -> float:
    """Read bandwidth in GB/s of the device that the kernels run on."""
    return _gpu_read_gb_s() if mx.default_device() == mx.gpu else _cpu_read_gb_s()


def _cpu_read_gb_s() -> float:
    """All threads load 512 MiB, more than any cache holds, with the kernels' instruction set."""
    words = mx.ones(2**27, dtype=mx.uint32)
    mx.eval(words)
    return words.nbytes / min(time_us(lambda: ops.read_all(words))) / 1e3


@cache
def gflop_s() -> float:
    """Float32 multiply-adds of the CPU in GFLOP/s: all threads in registers."""
    samples = time_us(lambda: ops.multiply_adds(2**20))
    return 2 * ops.multiply_adds(1) * 2**20 / min(samples) / 1e3


def _gpu_read_gb_s() -> float:
    """MLX's own maximum over 1 GiB."""
    array = mx.ones(2**28)
    mx.eval(array)
    return array.nbytes / min(time_us(array.max)) / 1e3


class Report:
    """Prints one line per measurement for people and writes one JSON line for files.

    Args:
        json_lines: Takes the JSON lines; ``None`` for none.
        subject: What is measured: the key of its name in the JSON lines.
    """

    def __init__(self, json_lines: TextIO | None = None, *, subject: str = "kernel") -> None:
        self._json_lines = json_lines
        self._subject = subject

    def __call__(
        self,
        name: str,
        case: str,
        samples: list[float],
        *,
        n_bytes: int,
        n_flops: int = 0,
        ceilings: Mapping[str, float] | None = None,
        memory: Mapping[str, int] | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        """Report one call.

        Args:
            name: Of the op or operation.
            case: Shape or circumstances of this call, in words.
            samples: Microseconds per call.
            n_bytes: Bytes one call must read and write at least, or move.
            n_flops: Floating-point operations of one call (a multiply-add is two).
            ceilings: GB/s that the same run measured, by what they limit; the read bandwidth if
                None.
            memory: Bytes of memory that the call took, by their kind.
            figures: More, by their keys in the JSON line.
        """
        limits = {"read": read_gb_s()} if ceilings is None else ceilings
        median = statistics.median(samples)
        gb_s, rate = n_bytes / median / 1e3, n_flops / median / 1e3
        peak = gflop_s() if n_flops and mx.default_device() == mx.cpu else None
        shares = ", ".join(f"{gb_s / limit:5.0%} of {kind}" for kind, limit in limits.items())
        line = f"{name:<20} {case:<28} {median:10.1f} us"
        if n_bytes:
            line += f" {gb_s:7.2f} GB/s ({shares} bandwidth)".replace("_", " ")
        if n_flops:
            line += f" {rate:7.1f} GFLOP/s"
            line += f" ({rate / peak:5.1%} of the peak)" if peak else ""
        for key, value in (figures or {}).items():
            words = f"{value / 1e6:.1f} MB" if key.endswith("_bytes") else f"{value:.1f}"
            line += f", {words} {key.removesuffix('_bytes').replace('_per_s', '/s')}"
        for kind, amount in (memory or {}).items():
            line += f", {kind.replace('_', ' ')} {amount / 1e6:.1f} MB"
        record = {
            **(figures or {}),
            "us_p50": round(median, 2),
            "us_min": round(min(samples), 2),
            "bytes": n_bytes,
            "flops": n_flops,
            **({"peak_gflop_s": round(peak, 1)} if peak else {}),
            **{f"{kind}_gb_s": round(limit, 2) for kind, limit in limits.items()},
            **{f"{kind}_bytes": amount for kind, amount in (memory or {}).items()},
        }
        self._write(line, name, case, record)

    def figures(self, name: str, case: str, words: str, figures: Mapping[str, object]) -> None:
        """Report what is no call of so many bytes.

        Args:
            name: Of what is measured.
            case: Its circumstances, in words.
            words: The figures for people.
            figures: By their keys in the JSON line.
        """
        self._write(f"{name:<20} {case:<28} {words}", name, case, figures)

    def skip(self, name: str, case: str, reason: str) -> None:
        """Report what was not measured, and why."""
        self._write(f"{name:<20} {case:<28} skipped: {reason}", name, case, {"skipped": reason})

    def _write(self, line: str, name: str, case: str, figures: Mapping[str, object]) -> None:
        print(line, flush=True)
        if self._json_lines is None:
            return
        cpu = ops.cpu_kernels()
        record = {
            self._subject: name,
            "case": case,
            **figures,
            "device": device_name(),
            "isa": cpu.isa,
            "threads": cpu.threads,
            "machine": platform.machine(),
            "system": platform.platform(),
            "mlx": version("mlx"),
        }
        print(json.dumps(record), file=self._json_lines, flush=True)


def device_name() -> str:
    """The device that the kernels run on, as MLX names it."""
    if mx.default_device() == mx.gpu:
        return str(mx.device_info()["device_name"])
    return "cpu"
