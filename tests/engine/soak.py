"""Many clients on one engine for hours: no deadlock, no wrong token, nothing left behind.

    make soak SECONDS=1800 SEED=1

Phases of load alternate with checks. What a client asks follows from the seed; the times at which
requests meet do not.
"""

import argparse
import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mlx_dsv4 import Engine
from mlx_dsv4.engine import Serving, turns
from mlx_dsv4.errors import ClosedError
from mlx_dsv4.memory import process_memory
from soak_checks import Cold, History, check_phase
from soak_clients import AsyncClient, Client
from soak_journal import Journal
from tiny_models import tiny_model

CONTEXT = 2000
SLOTS = 3
THREADS = 4
SILENCE_SECONDS = 60
PHASE_SECONDS = 10
REMEMBERED_BYTES = 400_000  # of answers: few, so that some are forgotten
# The allocator and the interpreter keep pages in reserve; a cache of the context has 0.7 MB.
RESERVE_BYTES = 24 * 2**20
SERVING = Serving(anchor_bytes=2 * 2**20, store_bytes=8 * 2**20, slice_tokens=64, decode_quantum=2)


@dataclass(frozen=True)
class Held:
    """What a process holds besides memory."""

    threads: int
    descriptors: int

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        return cls(threading.active_count(), len(os.listdir("/dev/fd")))


def soak(seconds: float, seed: int) -> Journal:
    """Run for some time, or until something is wrong; what came of it."""
    journal = Journal(SILENCE_SECONDS)
    hook, threading.excepthook = threading.excepthook, _telling(journal)
    remembered, turns.MOST_BYTES = turns.MOST_BYTES, REMEMBERED_BYTES
    path = tiny_model(ratios=(0, 4, 128), hash_layers=1).path
    try:
        before = Held.now()
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            _run(Path(folder), path, journal, seconds, seed)
        if Held.now() != before:
            journal.fail(f"{before} before the engine was loaded, {Held.now()} after its end")
    finally:
        threading.excepthook, turns.MOST_BYTES = hook, remembered
        journal.stop()
    return journal


def _run(folder: Path, path: Path, journal: Journal, seconds: float, seed: int) -> None:
    cold, history = Cold(path), History()
    engine = Engine.load(
        path, context=CONTEXT, slots=SLOTS, store=folder / "store", serving=SERVING
    )
    with engine:
        clients = [Client(engine, journal, f"{seed}/{i}", folder) for i in range(THREADS)]
        clients.append(AsyncClient(engine, journal, f"{seed}/async", folder))
        end = time.monotonic() + seconds
        memory: list[int] = []
        while time.monotonic() < end and not journal.failures:
            _load_phase(clients, min(PHASE_SECONDS, seconds / 8))
            check_phase(journal, cold, history, CONTEXT)
            if not journal.failures:
                _check_idle(engine, journal)
            memory += _memory(history)
            journal.count("phases", "checked")
        if not journal.failures:
            _check_memory(engine, journal, memory)
            _close_while_running(engine, journal)
    journal.count("checks", "cold runs", cold.runs)


def _load_phase(clients: list[Client], seconds: float) -> None:
    """All clients at once."""
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=client.run, args=[until]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _check_idle(engine: Engine, journal: Journal) -> None:
    """Nothing runs, waits or is held once the clients have ended; dropped streams end soon."""
    until = time.monotonic() + 10
    while (status := engine.status()).running + status.waiting and time.monotonic() < until:
        time.sleep(0.01)
    taken = [slot for slot in status.slots if slot.busy or slot.held_by_session]
    if status.running or status.waiting or taken:
        journal.fail(f"no client is left, and the engine has {status}")
    journal.count("checks", "idle engine")


def _memory(history: History) -> list[int]:
    """Anonymous bytes, without those that the soak itself keeps; none where they are not told."""
    gc.collect()
    mx.clear_cache()
    # The allocator of Linux gives freed pages back when it is asked to.
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    memory = process_memory()
    return [] if memory is None else [memory.anonymous - history.n_bytes]


def _check_memory(engine: Engine, journal: Journal, seen: list[int]) -> None:
    """Once every thread has had its share, a slot may grow to its capacity, and nothing else.

    Pages that the allocator happens to keep come and go, a leak stays: the most of the first
    quarter of the phases is compared with the least of the last ones.
    """
    if len(seen) < 2:
        return
    settled = seen[: max(1, len(seen) // 4)]
    grown = min(seen[len(settled) :][-3:]) - max(settled)
    slot_bytes = engine.model.plan_cache(CONTEXT).n_bytes + SERVING.anchor_bytes
    most = SLOTS * slot_bytes + RESERVE_BYTES
    journal.count("memory", "kB at first", settled[0] // 1024)
    journal.count("memory", "kB after a quarter of the phases, at most", max(settled) // 1024)
    journal.count("memory", "kB grown since then", grown // 1024)
    journal.count("memory", "kB that it may grow", most // 1024)
    if grown > most:
        journal.fail(f"memory has grown by {grown} bytes; at most {most} are accounted for")


def _close_while_running(engine: Engine, journal: Journal) -> None:
    """Whoever reads when the engine is closed gets all of it, or the error that says so."""
    streams = [engine.stream([5, 6, 7 + i]) for i in range(2 * SLOTS)]
    engine.close()
    for stream in streams:
        try:
            journal.outcome("at the end", stream.result().finish_reason)
        except ClosedError:
            journal.outcome("at the end", "ClosedError")


def _telling(journal: Journal) -> Callable[[threading.ExceptHookArgs], None]:
    def tell(args: threading.ExceptHookArgs) -> None:
        trace = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        journal.fail(f"{args.thread} ended with\n{''.join(trace)}")

    return tell


def report(journal: Journal) -> str:
    """Counts by heading, then the failures."""
    lines, heading = [], ""
    for (title, what), n in sorted(journal.counts.items()):
        if title != heading:
            lines.append(f"{title}")
            heading = title
        lines.append(f"  {n:>9,} {what}")
    lines += [f"FAILED: {failure}" for failure in journal.failures[:20]]
    if len(journal.failures) > 20:
        lines.append(f"and {len(journal.failures) - 20} more")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    journal = soak(args.seconds, args.seed)
    print(report(journal))
    return 1 if journal.failures else 0


if __name__ == "__main__":
    sys.exit(main())
