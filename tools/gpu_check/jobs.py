"""Processes with a time limit each: pytest, alone or under compute-sanitizer, and their results."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.gpu_check.bugs import ROOT

TESTS = "tests"
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZER = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
OPTIONS = {
    # Allocations are 512 bytes apart at least; with more between them none is taken for another.
    "memcheck": ("--padding", "64"),
    "racecheck": ("--racecheck-report", "analysis"),
    "synccheck": (),
    # Buffers are copied whole, also where a kernel writes a part.
    "initcheck": ("--check-api-memory-access", "no"),
}
MOST_S = 240  # of one process: a kernel that hangs must not take a core to the end
FIRST_PORT, PORTS = 49152, 16  # of a process under compute-sanitizer
RESULT = re.compile(r" (PASSED|FAILED|ERROR|SKIPPED)\b")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
FINDING = re.compile(
    r"^=========\s+(?!\w+ SUMMARY)"
    r"((?:Invalid|Error|Warning|Uninitialized|Barrier|Potential|Program hit).*)",
    re.MULTILINE | re.IGNORECASE,
)
PLACE = re.compile(r"\b([\w.]+\.(?:metal|h):\d+)")


@dataclass(frozen=True)
class Job:
    """Some tests in one process.

    Attributes:
        name: Of its logs.
        tool: One of `TOOLS`, or `TESTS`.
        tests: Node ids.
        options: More arguments of pytest.
    """

    name: str
    tool: str
    tests: Sequence[str]
    options: Sequence[str] = ()


@dataclass
class Outcome:
    """What came of a job.

    Attributes:
        job: The job.
        status: "done", "timeout", "not run", "no summary" of the sanitizer, or "not started: ...".
        results: Tests by pytest's word for how they ended.
        n_findings: Of the sanitizer.
        findings: Distinct ones, each with its first place in the shaders.
        kernels: Host names of the kernels that ran.
        seconds: That it took.
    """

    job: Job
    status: str = "not run"
    results: Counter[str] = field(default_factory=Counter)
    n_findings: int = 0
    findings: list[str] = field(default_factory=list)
    kernels: set[str] = field(default_factory=set)
    seconds: float = 0


def command(job: Job, log: Path, number: int) -> list[str]:
    """The command line of a job, the `number`-th of all."""
    pytest = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=short"]
    pytest += [*job.options, "-m", "cuda", *job.tests]
    if job.tool == TESTS:
        return pytest
    return [
        SANITIZER,
        *("--tool", job.tool, "--log-file", str(log), "--port", str(FIRST_PORT + PORTS * number)),
        *("--target-processes", "application-only", "--destroy-on-device-error", "kernel"),
        *("--show-backtrace", "device", "--print-limit", "200"),
        *OPTIONS[job.tool],
        *pytest,
    ]


def execute(job: Job, number: int, logs: Path, deadline: float, env: dict[str, str]) -> Outcome:
    """Runs a job until a time of time.monotonic()."""
    outcome, start = Outcome(job), time.monotonic()
    if deadline - start < 5:
        return outcome
    log, launched = logs / f"{job.name}.sanitizer.txt", logs / f"{job.name}.kernels"
    printed = logs / f"{job.name}.txt"
    env = {**os.environ, **env, "DSV4_LAUNCHED": str(launched)}
    if job.tool == "initcheck":
        env["MSLSIM_CUDA_UNFILLED"] = "1"  # outputs are not filled with NaN before a launch
    with printed.open("w") as out:
        try:
            process = subprocess.Popen(
                command(job, log, number),
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            outcome.status = f"not started: {error}"
            return outcome
        try:
            process.wait(min(deadline - start, MOST_S))
            outcome.status = "done"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            outcome.status = "timeout"
    outcome.seconds = time.monotonic() - start
    read_results(outcome, printed, log, launched)
    return outcome


def read_results(outcome: Outcome, printed: Path, log: Path, launched: Path) -> None:
    """Reads what a job wrote."""
    outcome.results = Counter(RESULT.findall(printed.read_text(errors="replace")))
    if launched.exists():
        outcome.kernels = set(launched.read_text().split())
    if outcome.job.tool == TESTS:
        return
    text = log.read_text(errors="replace") if log.exists() else ""
    summaries = SUMMARY.findall(text)
    outcome.n_findings = sum(int(errors or hazards) for errors, hazards in summaries)
    outcome.findings = distinct_findings(text)
    if not summaries and outcome.status == "done":
        outcome.status = "no summary"


def distinct_findings(text: str) -> list[str]:
    """The kinds of findings in a log of compute-sanitizer, each with its place."""
    heads = list(FINDING.finditer(text))
    found = []
    for i, head in enumerate(heads):
        end = heads[i + 1].start() if i + 1 < len(heads) else len(text)
        places = PLACE.findall(text[head.start() : end])
        kind = re.sub(r"0x[0-9a-f]+|\b\d+ hazards?", "...", head[1])[:120]
        found.append(f"{kind} at {places[0]}" if places else kind)
    return list(dict.fromkeys(found))
