"""How calls are timed, and what this machine does at most: memory, arithmetic, an empty op."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_dsv4 import ops
from mlx_dsv4.bench.ceilings import Copies

ROUNDS = 2**20
PROBES = 3
# More than any cache holds.
READ_BYTES, COPIED_BYTES = 512 << 20, 256 << 20


def time_us(call: Callable[[], Any], *, repeats: int = 20, warmup: int = 3) -> list[float]:
    """Microseconds of ``mx.eval(call())``, one sample per repeat, after warm-up calls."""
    samples = []
    for _ in range(repeats + warmup):
        start = time.perf_counter_ns()
        mx.eval(call())
        samples.append((time.perf_counter_ns() - start) / 1e3)
    return samples[warmup:]


def rotated_us(
    calls: Mapping[str, Callable[[], Any]], *, repeats: int = 20
) -> dict[str, list[float]]:
    """Microseconds of several calls that take turns, so that all of them meet one machine."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        time_us(call, repeats=1, warmup=1)
    for _ in range(repeats):
        for name, call in calls.items():
            samples[name] += time_us(call, repeats=1, warmup=0)
    return samples


@cache
def _words() -> mx.array:
    on_gpu = mx.default_device() == mx.gpu
    words = mx.ones(READ_BYTES // (2 if on_gpu else 4), dtype=mx.uint32)
    mx.eval(words)
    return words


def read_gb_s(repeats: int = 20) -> float:
    """Read bandwidth in GB/s of the device that the kernels run on: the best of some reads."""
    words = _words()
    # On a GPU MLX's own maximum.
    read = words.max if mx.default_device() == mx.gpu else lambda: ops.read_all(words)
    return words.nbytes / min(time_us(read, repeats=repeats, warmup=1)) / 1e3


def copy_gb_s() -> float:
    """Bytes copied from memory to memory, in GB/s of the CPU; each is read and written."""
    copies, source = Copies(), np.ones(COPIED_BYTES, np.uint8)
    for _ in range(3):
        copies.sample([source])
    return copies.gb_s()["touched_copy"]


def gflop_s(repeats: int = 20) -> float:
    """Float32 multiply-adds of the CPU in GFLOP/s: all threads in registers; the best of some."""
    samples = time_us(lambda: ops.multiply_adds(ROUNDS), repeats=repeats, warmup=1)
    return 2 * ops.multiply_adds(1) * ROUNDS / min(samples) / 1e3


def bfloat16_gflop_s() -> float:
    """The same where one factor is bfloat16, loaded and widened for each multiply-add."""
    samples = time_us(lambda: ops.widened_multiply_adds(ROUNDS))
    return 2 * ops.widened_multiply_adds(1) * ROUNDS / min(samples) / 1e3


@cache
def eval_us() -> float:
    """Microseconds of ``mx.eval`` of one addition of two numbers: no op costs less."""
    x = mx.array([1.0])
    mx.eval(x)
    return statistics.median(time_us(lambda: x + x, repeats=200, warmup=20))


def device_name() -> str:
    """The device that the kernels run on, as MLX names it."""
    if mx.default_device() == mx.gpu:
        return str(mx.device_info()["device_name"])
    return "cpu"


@dataclass(slots=True)
class Probe:
    """The ceilings between measurements: on a shared machine they change from second to second.

    Attributes:
        read_gb_s: Of now.
        gflop_s: Of now; None on a GPU.
    """

    read_gb_s: float
    gflop_s: float | None

    @classmethod
    def take(cls) -> "Probe":
        on_cpu = mx.default_device() == mx.cpu
        return cls(read_gb_s(PROBES), gflop_s(PROBES) if on_cpu else None)

    def higher(self, other: "Probe") -> "Probe":
        """What could have been reached between two."""
        peaks = [peak for peak in (self.gflop_s, other.gflop_s) if peak is not None]
        return Probe(max(self.read_gb_s, other.read_gb_s), max(peaks, default=None))


def ceilings() -> dict[str, float]:
    """All of them, by their keys in JSON lines; those of arithmetic and copies on a CPU alone."""
    known = {"read_gb_s": read_gb_s(), "eval_us": eval_us()}
    if mx.default_device() == mx.cpu:
        known["copy_gb_s"] = copy_gb_s()
        known["float32_gflop_s"] = gflop_s()
        known["bfloat16_gflop_s"] = bfloat16_gflop_s()
    return {key: round(value, 2) for key, value in known.items()}


def machine_words(known: Mapping[str, float]) -> str:
    """One line for people: the device and its ceilings."""
    cpu = ops.cpu_kernels()
    where = f"{cpu.isa}, {cpu.threads} threads" if mx.default_device() == mx.cpu else ""
    parts = [f"device {device_name()}", where, f"read {known['read_gb_s']:.1f} GB/s"]
    if "copy_gb_s" in known:
        parts += [
            f"copy {known['copy_gb_s']:.1f} GB/s",
            f"float32 {known['float32_gflop_s']:.0f} GFLOP/s",
            f"bfloat16 {known['bfloat16_gflop_s']:.0f} GFLOP/s",
        ]
    return ", ".join([*filter(None, parts), f"an empty op {known['eval_us']:.0f} us"])
