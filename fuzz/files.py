"""Mutated model files, read in a process of their own that must not come to harm: ``make fuzz``.

    python -m fuzz.files --seconds 3600
    python -m fuzz.files --seed 1 --first 17 --count 1

The first form stops at the first input that is answered by anything but success or an error of
this package, keeps its files in build/fuzz and says how to repeat it, which is the second form.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.mutations import make_input

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/fuzz"
ENDLESS = 1 << 62
# What the signals of fuzz.reading's bounds mean.
_BOUNDS = {signal.SIGPROF: "too much processor time", signal.SIGALRM: "too much time"}
_REPORT_LINES = 25


@dataclass(frozen=True)
class Result:
    """What came of a run.

    Args:
        summary: How many inputs were read, and what refused them.
        index: Of the input that broke a bound; None if none did.
        reason: What it did, with the end of the process's own report.
    """

    summary: str
    index: int | None = None
    reason: str = ""


def watch(command: Sequence[str]) -> Result:
    """Run a process that names its inputs before it reads them; see :mod:`fuzz.reading`."""
    index, summary = None, ""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        # A heap for each thread would reserve more than the bound on memory, and use none of it.
        env = os.environ | {"MALLOC_ARENA_MAX": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=env
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                word, _, rest = line.strip().partition(" ")
                if word == "input":
                    index = int(rest)
                elif word == "done":
                    summary = rest
        errors.seek(0)
        report = "".join(errors.readlines()[-_REPORT_LINES:])
    if process.returncode == 0 and summary:
        return Result(summary)
    return Result(summary, index, f"{_ending(process.returncode)}\n{report}".strip())


def _ending(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    ended_by = signal.Signals(-code)
    return _BOUNDS.get(ended_by, f"the process was ended by {ended_by.name}")


def fuzz(seed: int, *, first: int = 0, count: int = ENDLESS, seconds: float = 1e9) -> Result:
    """Read the inputs of a seed from ``first`` on."""
    numbers = [str(seed), str(first), str(count), str(seconds)]
    return watch([sys.executable, "-X", "faulthandler", "-m", "fuzz.reading", *numbers])


def keep(seed: int, index: int) -> Path:
    """Write the files of an input to build/fuzz."""
    folder = BUILD / f"{seed}-{index}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in make_input(seed, index).items():
        (folder / name).write_bytes(raw)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="index of the first input")
    parser.add_argument("--count", type=int, default=ENDLESS)
    parser.add_argument("--seconds", type=float, default=1e9)
    args = parser.parse_args()
    result = fuzz(args.seed, first=args.first, count=args.count, seconds=args.seconds)
    if not result.reason:
        print(f"files: {result.summary}")
        return 0
    if result.index is None:
        print(f"the valid files are not read: {result.reason}")
        return 1
    print(f"input {result.index}: {result.reason}")
    print(f"its files are in {keep(args.seed, result.index).relative_to(ROOT)}; again:")
    print(f"  python -m fuzz.files --seed {args.seed} --first {result.index} --count 1")
    return 1


if __name__ == "__main__":
    sys.exit(main())
