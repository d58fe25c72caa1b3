"""Timing and reports shared by the benchmarks.

A figure means something beside the machine's ceiling of the same run, so every report carries the
nearer one: the bytes that a call must move over the bandwidth, or its operations over the rate,
both measured in this process.
"""

import json
import math
import platform
import statistics
from collections.abc import Mapping
from importlib.metadata import version
from typing import TextIO

from mlx_dsv4 import ops
from mlx_dsv4.bench.machine import Probe, device_name, eval_us, machine_words
from mlx_dsv4.bench.machine import ceilings as machine_ceilings

# Times that an op's own overhead rules are given in empty ops as well.
FEW_EVALS = 10


def nearer(gb_s: float, rate: float, probe: Probe, median: float) -> dict[str, float]:
    """The share of the nearer ceiling, and the time in empty ops."""
    share = max(gb_s / probe.read_gb_s, rate / (probe.gflop_s or math.inf))
    return {"ceiling_share": round(share, 4), "evals": round(median / eval_us(), 2)}


class Report:
    """Prints one line per measurement for people and writes one JSON line for files.

    Args:
        json_lines: Takes the JSON lines; ``None`` for none.
        subject: What is measured: the key of its name in the JSON lines.
    """

    def __init__(self, json_lines: TextIO | None = None, *, subject: str = "kernel") -> None:
        self._json_lines = json_lines
        self._subject = subject
        self._before: Probe | None = None

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
            ceilings: GB/s that the same run measured, by what they limit; None measures the
                machine's before and after, and the higher counts.
            memory: Bytes of memory that the call took, by their kind.
            figures: More, by their keys in the JSON line.
        """
        median = statistics.median(samples)
        gb_s, rate = n_bytes / median / 1e3, n_flops / median / 1e3
        probe = None if ceilings is not None else self._probe()
        limits = ceilings if probe is None else {"read": probe.read_gb_s}
        assert limits is not None
        peak = probe.gflop_s if probe and n_flops else None
        shares = ", ".join(f"{gb_s / limit:5.0%} of {kind}" for kind, limit in limits.items())
        line = f"{name:<20} {case:<28} {median:10.1f} us"
        if n_bytes:
            line += f" {gb_s:7.2f} GB/s ({shares} bandwidth)".replace("_", " ")
        if n_flops:
            line += f" {rate:7.1f} GFLOP/s"
            line += f" ({rate / peak:5.1%} of the peak)" if peak else ""
        if ceilings is None and median < FEW_EVALS * eval_us():
            line += f", {median / eval_us():.1f} empty ops"
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
            **({} if probe is None else nearer(gb_s, rate, probe, median)),
            **({"peak_gflop_s": round(peak, 1)} if peak else {}),
            **{f"{kind}_gb_s": round(limit, 2) for kind, limit in limits.items()},
            **{f"{kind}_bytes": amount for kind, amount in (memory or {}).items()},
        }
        self._write(line, name, case, record)

    def _probe(self) -> Probe:
        """The ceilings around what has just been measured."""
        after = Probe.take()
        before, self._before = self._before or after, after
        return before.higher(after)

    def machine(self) -> None:
        """Report the machine's ceilings."""
        known = machine_ceilings()
        self._write(f"== {machine_words(known)}", "machine", "ceilings", known)

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
