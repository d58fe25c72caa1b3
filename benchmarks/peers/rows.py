"""Rows of the comparison: medians, marks and ratios. Nothing here measures."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.engines import OURS
from benchmarks.peers.worker import Measurement

SAME, OTHER = "same tokens", "other tokens"
# Threads that wait for each other by spinning lose far more than the share that others take.
QUIET_CPUS = 0.1


@dataclass(frozen=True, slots=True)
class Agreement:
    """How an engine's logits compare with the reference's, both fed with the same tokens.

    Args:
        top1: Share of the steps at which the likeliest token is the same.
        worst: Largest difference of two logits at any step.
        typical: Median over the steps of the largest difference at a step.
    """

    top1: float
    worst: float
    typical: float

    @classmethod
    def of(cls, logits: NDArray[np.float32], reference: NDArray[np.float32]) -> "Agreement":
        """Compare ``[steps, V]`` with ``[steps, V]``."""
        same = logits.argmax(axis=1) == reference.argmax(axis=1)
        largest = np.abs(logits - reference).max(axis=1)
        return cls(float(same.mean()), float(largest.max()), float(np.median(largest)))


@dataclass(frozen=True, slots=True)
class Row:
    """One engine at one context.

    Args:
        engine: Its name.
        version: Of its package; None where it is not installed.
        context: Tokens of the prompt.
        prefill_tps: Prompt tokens per second, the median of the repeats.
        decode_tps: The same of decoded tokens.
        peak_bytes: The largest ru_maxrss of its processes.
        tokens: :data:`SAME` or :data:`OTHER` than ours; None where ours is missing.
        agreement: With the reference.
        measurements: Of the repeats.
        missing: Why there are no figures; empty where there are.
    """

    engine: str
    version: str | None
    context: int
    prefill_tps: float | None = None
    decode_tps: float | None = None
    peak_bytes: int | None = None
    tokens: str | None = None
    agreement: Agreement | None = None
    measurements: tuple[Measurement, ...] = ()
    missing: str = ""

    @property
    def others_cpus(self) -> float | None:
        """CPUs that other processes kept busy, the median of the repeats; None if unknown."""
        known = [m.others_cpus for m in self.measurements if m.others_cpus is not None]
        return statistics.median(known) if known else None

    def record(self) -> dict[str, Any]:
        """For a JSON line."""
        fields = asdict(self)
        agreement = fields.pop("agreement") or {"top1": None, "worst": None, "typical": None}
        repeats = fields.pop("measurements")
        return fields | {
            **{key: [m[key] for m in repeats] for key in ("prefill_s", "decode_s", "others_cpus")},
            "top1_share": agreement["top1"],
            "max_logit_difference": agreement["worst"],
            "typical_logit_difference": agreement["typical"],
        }


def measured_row(
    engine: str,
    version: str | None,
    context: int,
    measurements: Sequence[Measurement],
    agreement: Agreement,
    ours: Sequence[int] | None,
) -> Row:
    """The row of some repeats.

    Args:
        engine, version, context: As in :class:`Row`.
        measurements: Of the repeats, at least one.
        agreement: Of the engine's logits with the reference's.
        ours: The likeliest tokens of this package at each step.
    """
    tokens = measurements[0].tokens
    decode_s = statistics.median(m.decode_s for m in measurements)
    return Row(
        engine,
        version,
        context,
        prefill_tps=round(context / statistics.median(m.prefill_s for m in measurements), 2),
        decode_tps=round(len(tokens) / decode_s, 2),
        peak_bytes=max(m.peak_bytes for m in measurements),
        tokens=None if ours is None else SAME if tokens == list(ours) else OTHER,
        agreement=agreement,
        measurements=tuple(measurements),
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our rate over that of the best peer.

    Args:
        context: Tokens of the prompt.
        what: "prefill" or "decode".
        ratio: Above 1 where ours is faster.
        peer: The best one's name.
        peer_tokens: Its mark.
        disturbed: Whether other work ran beside one of the two.
    """

    context: int
    what: str
    ratio: float
    peer: str
    peer_tokens: str | None
    disturbed: bool = False


def ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Ours over the best peer, wherever both have figures."""
    found = []
    for context in sorted({row.context for row in rows}):
        here = [row for row in rows if row.context == context and not row.missing]
        ours = [row for row in here if row.engine == OURS]
        peers = [row for row in here if not row.engine.startswith(OURS)]
        if not ours or not peers:
            continue
        for what in ("prefill", "decode"):
            best = max(peers, key=lambda row: rate(row, what))
            ratio = round(rate(ours[0], what) / rate(best, what), 2)
            any_disturbed = disturbed(ours[0].others_cpus) or disturbed(best.others_cpus)
            found.append(Ratio(context, what, ratio, best.engine, best.tokens, any_disturbed))
    return found


def rate(row: Row, what: str) -> float:
    """Tokens per second; 0 where there is none."""
    return (row.prefill_tps if what == "prefill" else row.decode_tps) or 0.0


def disturbed(others_cpus: float | None) -> bool:
    """Whether other processes took enough of the machine to matter."""
    return others_cpus is not None and others_cpus > QUIET_CPUS
