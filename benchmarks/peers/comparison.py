"""The run: at each context, all engines take turns, as often as there are repeats."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.engines import OURS, Entry
from benchmarks.peers.processes import MeasurementError, measured
from benchmarks.peers.rows import Agreement, Row, disturbed, measured_row
from benchmarks.peers.worker import Measurement, Task

FIRST_ID = 3  # after the tokens that begin, end and pad a text


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared.

    Args:
        model: The GGUF file.
        vocab: Its number of tokens.
        entries: The engines; the first one that runs is the reference.
        contexts: Tokens of the prompts.
        decoded: Tokens to decode after each.
        repeats: Processes for each engine at each context.
        attempts: Processes for one repeat, while other work disturbs it.
        threads: Of each engine.
        timeout_s: Seconds that a process may take.
    """

    model: Path
    vocab: int
    entries: Sequence[Entry]
    contexts: Sequence[int]
    decoded: int
    repeats: int
    attempts: int
    threads: int
    timeout_s: float

    def prompt(self, context: int) -> list[int]:
        ids = np.random.default_rng(0).integers(FIRST_ID, self.vocab, context)
        return [int(token) for token in ids]


@dataclass
class Runs:
    """What one engine has done at one context."""

    entry: Entry
    version: str | None
    missing: str
    measurements: list[Measurement] = field(default_factory=list)
    logits: NDArray[np.float32] | None = None


def compare(plan: Plan, say: Callable[[str], None]) -> Iterator[list[Row]]:
    """The rows of one context after the other.

    Args:
        plan: What to compare.
        say: Takes a line for each process that begins.
    """
    for context in plan.contexts:
        all_runs = [Runs(entry, *_installed(entry)) for entry in plan.entries]
        forced: list[int] | None = None
        for repeat in range(plan.repeats):
            for runs in all_runs:
                if runs.missing:
                    continue
                say(f"{runs.entry.name} @ {context}, {repeat + 1} of {plan.repeats}")
                _run(plan, context, runs, forced)
                # All decode the reference's tokens, so that all see the same inputs.
                forced = forced or (runs.measurements[0].tokens if runs.measurements else None)
        yield rows_of(context, all_runs)


def _installed(entry: Entry) -> tuple[str | None, str]:
    version = entry.version()
    return version, "" if version else f"not installed: {entry.install}"


def _run(plan: Plan, context: int, runs: Runs, forced: list[int] | None) -> None:
    task = Task(
        engine=runs.entry.name,
        model=str(plan.model),
        ids=plan.prompt(context),
        decoded=plan.decoded,
        forced=forced,
        threads=plan.threads,
    )
    try:
        measurement, runs.logits = least_disturbed(task, plan)
    except MeasurementError as error:
        runs.missing = f"failed: {error}"
        return
    runs.measurements.append(measurement)


def least_disturbed(task: Task, plan: Plan) -> tuple[Measurement, NDArray[np.float32]]:
    """Measure until nothing else runs meanwhile, or the attempts are spent.

    Raises:
        MeasurementError: as :func:`measured`.
    """
    best, logits = measured(task, plan.timeout_s)
    for _ in range(plan.attempts - 1):
        if not disturbed(best.others_cpus):
            break
        again, logits = measured(task, plan.timeout_s)
        best = min(best, again, key=lambda m: m.others_cpus or 0.0)
    return best, logits


def rows_of(context: int, all_runs: Sequence[Runs]) -> list[Row]:
    """One row for each engine, in their order; the first with logits is the reference."""
    reference = next((runs.logits for runs in all_runs if runs.logits is not None), None)
    ours = next(
        (r.measurements[0].tokens for r in all_runs if r.entry.name == OURS and r.measurements),
        None,
    )
    rows = []
    for runs in all_runs:
        name, version = runs.entry.name, runs.version
        if runs.missing or runs.logits is None or reference is None:
            rows.append(Row(name, version, context, missing=runs.missing))
            continue
        agreement = Agreement.of(runs.logits, reference)
        rows.append(measured_row(name, version, context, runs.measurements, agreement, ours))
    return rows
