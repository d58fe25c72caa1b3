"""One engine at one context, in a process of its own.

    python -m benchmarks.peers.worker task.json logits.npy

The task comes as JSON; the last line of stdout is the measurement as JSON, and the logits are
written to the file. Peak memory is the process's ru_maxrss: with the interpreter and its libraries,
and with the pages of the mapped model file that are resident.
"""

import json
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.engines import ENTRIES, Engine

# ru_maxrss counts KiB on Linux and bytes on macOS.
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
WARM_UP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Task:
    """What to measure.

    Args:
        engine: Name of its entry.
        model: Path of the GGUF file.
        ids: The prompt.
        decoded: How many tokens to decode after it.
        forced: The tokens to decode; None takes the likeliest one each time.
        threads: To compute with.
    """

    engine: str
    model: str
    ids: list[int]
    decoded: int
    forced: list[int] | None
    threads: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came out.

    Args:
        prefill_s: Seconds from the prompt to the logits after it.
        decode_s: Seconds of all decoded tokens, from logits to logits.
        peak_bytes: Of the process.
        tokens: The likeliest token at each step.
        others_cpus: How many CPUs other processes kept busy meanwhile; None where the system does
            not tell.
    """

    prefill_s: float
    decode_s: float
    peak_bytes: int
    tokens: list[int]
    others_cpus: float | None


def measure(engine: Engine, task: Task) -> tuple[Measurement, NDArray[np.float32]]:
    """Time a prompt and the tokens after it; the logits ``[decoded, V]`` that chose them."""
    engine.prefill(task.ids[:WARM_UP_TOKENS])
    engine.step(task.ids[0])
    others = others_cpu_s()
    begun = time.perf_counter()
    logits = engine.prefill(task.ids)
    read = time.perf_counter()
    rows = []
    for i in range(task.decoded):
        rows.append(np.array(logits))
        token = int(logits.argmax()) if task.forced is None else task.forced[i]
        logits = engine.step(token)
    decoded = time.perf_counter()
    busy = None if others is None else ((others_cpu_s() or 0) - others) / (decoded - begun)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT
    tokens = [int(row.argmax()) for row in rows]
    return Measurement(read - begun, decoded - read, peak, tokens, busy), np.stack(rows)


def others_cpu_s() -> float | None:
    """CPU seconds that all other processes have used since the system started; on Linux."""
    counts = Path("/proc/stat")
    if not counts.exists():
        return None
    user, nice, system, _, _, interrupt, soft, steal = map(
        int, counts.read_text().split("\n", 1)[0].split()[1:9]
    )
    own = sum(os.times()[:2])
    ticks = user + nice + system + interrupt + soft + steal
    return ticks / os.sysconf("SC_CLK_TCK") - own


def keep_to(threads: int) -> None:
    """Give the process so many CPUs, where the system can and it has more.

    Not every engine has a setting for its threads.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def main(task_file: Path, logits_file: Path) -> None:
    task = Task(**json.loads(task_file.read_text()))
    keep_to(task.threads)
    (entry,) = [entry for entry in ENTRIES if entry.name == task.engine]
    engine = entry.load(Path(task.model), len(task.ids) + task.decoded, task.threads)
    measurement, logits = measure(engine, task)
    np.save(logits_file, logits)
    print(json.dumps(asdict(measurement)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
