"""Processes that measure: each has one engine in it, and ends before the next one begins."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.worker import Measurement, Task

ROOT = Path(__file__).parents[2]
# The settings of OpenMP that torch, llama.cpp and flyweight-llm have in common.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
REPORT_LINES = 3


class MeasurementError(RuntimeError):
    """A process ended without a measurement; the message has the end of what it printed."""


def measured(task: Task, timeout_s: float) -> tuple[Measurement, NDArray[np.float32]]:
    """Run a task; its measurement and the logits of its decoded tokens.

    Raises:
        MeasurementError: the engine refused the model, died, or took too long.
    """
    with TemporaryDirectory() as folder:
        given, logits = Path(folder) / "task.json", Path(folder) / "logits.npy"
        given.write_text(json.dumps(asdict(task)))
        threads = dict.fromkeys(THREAD_VARIABLES, str(task.threads))
        line = run("worker", str(given), str(logits), env=threads, timeout_s=timeout_s)
        return Measurement(**json.loads(line)), np.load(logits)


def run(
    module: str, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float
) -> str:
    """Run a module of this folder; the last line of its output, empty if there is none.

    Raises:
        MeasurementError: it failed or took too long.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.peers.{module}", *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=os.environ | {"PYTHONPATH": path} | dict(env or {}),
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"{module} must end in {timeout_s:.0f} s; it did not") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-REPORT_LINES:]
        raise MeasurementError(f"{module} ended with {done.returncode}: {' | '.join(said)}")
    return (done.stdout.strip().splitlines() or [""])[-1]


def ceilings(timeout_s: float) -> dict[str, Any]:
    """Read bandwidth and float32 rate of the machine.

    Raises:
        MeasurementError: they could not be measured.
    """
    found: dict[str, Any] = json.loads(run("ceilings", timeout_s=timeout_s))
    return found
