"""Runs the pack's checks on this machine's GPU: every process has a limit, a report is written."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tools.gpu_check.bugs import BUGS, ROOT
from tools.gpu_check.checkout import digests, problem
from tools.gpu_check.jobs import SANITIZER, TESTS, TOOLS, Job, execute
from tools.gpu_check.report import as_text, build, write

FOLDERS = ("tests/kernels", "tests/metal", "tests/cache")
COLLECTING_S = 60
COLLECT = ("--collect-only", "-q", "--continue-on-collection-errors")
# Beside a small case of every kernel, these hold long computations of few kernels.
CHECKED = "cuda and not realistic"


def run(pack: Path, out: Path, seconds: int, workers: int | None) -> None:
    """Unpacks, tests, and writes report.json and report.txt; exits with 1 if not all is well."""
    start = time.monotonic()
    with unpacked(pack) as (there, facts):
        logs = out / "logs"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        facts |= {"date": now(), "gpu": gpu(), "sanitizer": sanitizer_version()}
        env = environment(there)
        tests, problems = collect("cuda", env)
        checked, _ = collect(CHECKED, env)
        jobs = [*make_jobs(TESTS, tests), *bug_jobs(there)]
        for tool in TOOLS:
            jobs += make_jobs(tool, checked)
        n_workers = workers or max(1, (os.cpu_count() or 1) - 2)
        with ThreadPoolExecutor(n_workers) as pool:
            work = partial(execute, logs=logs, deadline=start + seconds, env=env)
            outcomes = list(pool.map(work, jobs, range(len(jobs))))
    facts |= {"not_collected": problems, "wall_s": round(time.monotonic() - start)}
    whole = [outcome for outcome in outcomes if not outcome.job.options]
    planted = [outcome for outcome in outcomes if outcome.job.options]
    report = build(facts, whole, list(zip((bug.what for bug in BUGS), planted, strict=True)))
    write(out, report)
    print(as_text(report), end="")
    sys.exit(not report["clean"])


def bench(pack: Path, out: Path) -> None:
    """Times the kernels of a pack; exits as the benchmark does."""
    with unpacked(pack) as (there, _):
        command = [sys.executable, str(ROOT / "benchmarks/gpu/bench_gpu_kernels.py")]
        done = subprocess.run(
            [*command, "--json", str(out)], env={**os.environ, **environment(there)}, check=False
        )
    sys.exit(done.returncode)


@contextmanager
def unpacked(pack: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder with what the pack holds, while it is needed, and the facts about it.

    Exits where the pack and this checkout are of different files.
    """
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(pack) as tar:
            tar.extractall(folder, filter="data")
        there = Path(folder)
        facts: dict[str, Any] = json.loads((there / "pack.json").read_text())
        if wrong := problem(pack, facts["commit"], facts.pop("sources"), digests(ROOT)):
            sys.exit(wrong)
        yield there, facts


def environment(there: Path) -> dict[str, str]:
    """What the tests need in their environment."""
    return {
        "PYTHONPATH": str(there / "site"),
        "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins of that machine
        "PYTHONDONTWRITEBYTECODE": "1",
        "MSLSIM_CUBINS": str(there / "cubins"),
        "DSV4_REQUIRE_CUDA": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(there / "hypothesis"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def make_jobs(tool: str, tests: list[str]) -> list[Job]:
    """The tests in some more processes than there are cores, so that none is left alone at the end.

    Neighbours stay together: they need the same cubin.
    """
    size = -(-len(tests) // (3 * (os.cpu_count() or 1) // 2))
    parts = [tests[at : at + size] for at in range(0, len(tests), size)]
    return [Job(f"{tool}-{i}", tool, part) for i, part in enumerate(parts)]


def bug_jobs(there: Path) -> list[Job]:
    """A job per planted bug: its test, on the shaders that have it."""
    return [
        Job(
            f"bug-{bug.name}",
            bug.tool,
            [bug.test()],
            ("--metal-sources", str(there / "bugs" / bug.name)),
        )
        for bug in BUGS
    ]


def collect(marks: str, env: dict[str, str]) -> tuple[list[str], list[str]]:
    """Node ids of the tests that bear the marks, and files that could not be read."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *COLLECT, "-m", marks, *FOLDERS],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=COLLECTING_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    tests = [line for line in lines if line.startswith("tests/") and "::" in line]
    if not tests:
        sys.exit(f"no tests were collected\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return tests, [line for line in lines if line.startswith("ERROR ")]


def gpu() -> str:
    """Name and driver of the GPU."""
    return first_line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")


def sanitizer_version() -> str:
    """The sanitizer's version."""
    return first_line(SANITIZER, "--version", line=2)


def first_line(*command: str, line: int = 0) -> str:
    """A line of what a program prints, or why it does not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    lines = done.stdout.splitlines()
    return lines[line].strip() if line < len(lines) else "unknown"


def now() -> str:
    """The time, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
