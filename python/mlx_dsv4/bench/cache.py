"""Full caches at V4-Flash's numbers: snapshot, restore, branch, take-over, grow, save, load.

Every row of the cache was written, so that its pages are really there. Beside each operation stands
what plain copies, or plain reads and writes of a file, make of the same bytes in the same run.
Memory that is new to the process is a ceiling of its own: its pages must be found and zeroed first.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import disk_usage

import mlx.core as mx
import numpy as np

from mlx_dsv4.bench.ceilings import (
    Bytes,
    Copies,
    PeakMemory,
    forget_file,
    fresh_memory,
    rate_gb_s,
    read_file_us,
    timed_us,
    warm_memory,
    write_file_us,
)
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.cache import (
    Cache,
    CachePlan,
    Fingerprint,
    Snapshot,
    grown_capacity,
    load_cache,
    plan_cache,
    save_cache,
)
from mlx_dsv4.cache.plan import GROWTH_TOKENS
from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.memory import available_bytes

CAPACITIES = (8192, 131_072, 1_048_576)
NOISE = np.random.default_rng(0).integers(0, 256, 8 << 20, np.uint8)
SNAPSHOT_REPEATS = 20
REPEATED_BYTES = 4_000_000_000  # moved by the repeats of what moves a whole cache
MOST_REPEATS = 10
RESERVE_BYTES = 256 << 20  # of memory and of disk, left to others


def run(report: Report, capacity_tokens: int, folder: Path) -> None:
    """Measure every operation on full caches of one capacity.

    Args:
        report: Takes the figures.
        capacity_tokens: Tokens that the caches hold.
        folder: For files; what is written there is removed again.
    """
    bench = Bench(report, plan_cache(V4_FLASH, capacity_tokens), folder)
    if bench.fits("cache", "full", bench.plan.n_bytes):
        held = Held.full(bench.plan)
        measure_snapshots(bench, held)
        measure_branches(bench, held)
        path = save(bench, held)
        del held
        if path is not None:
            load(bench, path)
    measure_grow(bench)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and what is measured."""

    report: Report
    plan: CachePlan
    folder: Path

    @property
    def case(self) -> str:
        return f"{self.plan.capacity_tokens} tokens"

    @property
    def repeats(self) -> int:
        """Of what moves a whole cache."""
        return max(2, min(MOST_REPEATS, REPEATED_BYTES // self.plan.n_bytes))

    def fits(self, name: str, case: str, n_bytes: int) -> bool:
        """Whether so much more memory is there; says so if not."""
        available = available_bytes()
        if available is None or n_bytes + RESERVE_BYTES <= available:
            return True
        reason = f"needs {gb(n_bytes)} of memory; {gb(available)} are available"
        self.report.skip(name, self.named(case), reason)
        return False

    def named(self, case: str) -> str:
        return f"{self.case}, {case}"


@dataclass(slots=True)
class Held:
    """The cache that owns its buffers, and a snapshot of its position; nobody else holds it."""

    cache: Cache
    snapshot: Snapshot

    @classmethod
    def full(cls, plan: CachePlan) -> "Held":
        cache = full_cache(plan)
        return cls(cache, cache.snapshot())

    def branch(self) -> Cache:
        return self.cache.branch(self.snapshot)


def full_cache(plan: CachePlan) -> Cache:
    """A cache at its capacity, filled with noise, with nothing in flight."""
    cache = Cache(plan)
    fill(cache, plan.capacity_tokens, NOISE)
    return cache


def fill(cache: Cache, n_tokens: int, noise: Bytes) -> None:
    """Append tokens of no model to an empty cache: ``noise`` over and over."""
    with cache.step(n_tokens):
        for memory in memory_of(cache, n_tokens):
            flat = memory.reshape(-1)
            for first in range(0, flat.nbytes, noise.nbytes):
                piece = flat[first : first + noise.nbytes]
                piece[:] = noise[: piece.nbytes]
    mx.eval(cache.handles())


def memory_of(cache: Cache, position: int | None = None) -> list[Bytes]:
    """What a position consists of: the rows of closed spans, the window and the states."""
    position = cache.position if position is None else position
    rows = [part for layer in cache.layers for part in layer.closed(position).values()]
    return [*rows, *fixed_memory(cache)]


def fixed_memory(cache: Cache) -> list[Bytes]:
    """What a snapshot consists of, where it lies."""
    return [part for layer in cache.layers for part in layer.fixed]


def measure_snapshots(bench: Bench, held: Held) -> None:
    """What moves a snapshot's bytes, whatever the context. Nothing is in flight."""
    copies, kept = Copies(), [held.snapshot]
    times: dict[str, list[float]] = {"kept": [], "dropped": [], "restore": []}
    for _ in range(SNAPSHOT_REPEATS):
        copies.sample(fixed_memory(held.cache))
        times["kept"].append(timed_us(lambda: kept.append(held.cache.snapshot())))
        times["restore"].append(timed_us(lambda: held.cache.restore(held.snapshot)))
    for _ in range(SNAPSHOT_REPEATS):
        times["dropped"].append(timed_us(held.cache.snapshot))
    n_bytes = held.snapshot.n_bytes
    report_copies(bench, copies, n_bytes)
    for name, case in (("kept", "each kept"), ("dropped", "each dropped")):
        bench.report(
            "snapshot", bench.named(case), times[name], n_bytes=n_bytes, ceilings=copies.gb_s()
        )
    bench.report("restore", bench.case, times["restore"], n_bytes=n_bytes, ceilings=copies.gb_s())


def report_copies(bench: Bench, copies: Copies, n_bytes: int) -> None:
    """What one thread needs for the bytes, as operations here are served by one thread."""
    for name, samples in copies.one_thread_us.items():
        case = f"{n_bytes / 1e6:.1f} MB, one thread"
        bench.report(name.replace("_", " "), case, samples, n_bytes=n_bytes, ceilings=copies.gb_s())


def measure_branches(bench: Bench, held: Held) -> None:
    """Made, then written to: beside its origin, which copies, and after it, which does not."""
    made = [timed_us(held.branch) for _ in range(SNAPSHOT_REPEATS)]
    bench.report("branch", bench.named("shares rows"), made, n_bytes=0, ceilings={})
    if bench.fits("branch", "first write", bench.plan.n_bytes):
        copies, peak = Copies(), PeakMemory()
        n_bytes = sum(memory.nbytes for memory in memory_of(held.cache))

        def first_write() -> float:
            copies.sample(memory_of(held.cache))
            branch = held.branch()
            with peak.watch():
                return timed_us(lambda: branch.layers)

        samples = [first_write() for _ in range(bench.repeats)]
        report_copies(bench, copies, n_bytes)
        report_move(bench, "branch", "first write", samples, n_bytes, copies.gb_s(), peak)
    measure_take_over(bench, held)


def measure_take_over(bench: Bench, held: Held) -> None:
    copies = Copies()

    def take_over() -> float:
        copies.sample(fixed_memory(held.cache))
        held.cache = held.branch()  # the origin is gone
        return timed_us(lambda: held.cache.layers)

    samples = [take_over() for _ in range(SNAPSHOT_REPEATS)]
    case, n_bytes = bench.named("takes rows over"), held.snapshot.n_bytes
    bench.report("branch", case, samples, n_bytes=n_bytes, ceilings=copies.gb_s())


def measure_grow(bench: Bench) -> None:
    """To the next step; a cache of the model's whole context is reached by growing instead.

    Freeing the smaller buffers comes on top where nobody else reads them.
    """
    plan = bench.plan
    capacity, context = plan.capacity_tokens, plan.config.context
    target = grown_capacity(capacity, capacity + 1, context=context)
    if target == capacity:
        bench.report.skip("grow", bench.case, f"the model's context is {context} tokens")
        capacity = max(1, context - GROWTH_TOKENS)
        plan = plan_cache(plan.config, capacity)
    grown, case = plan.grown(target), f"to {target} tokens"
    bench = Bench(bench.report, plan, bench.folder)
    if not bench.fits("grow", case, plan.n_bytes + grown.n_bytes):
        return
    copies, peak, n_bytes = Copies(), PeakMemory(), 0
    moved, freed = [], []
    for _ in range(bench.repeats):
        cache = full_cache(plan)
        memory = memory_of(cache)  # keeps the smaller buffers until it is cleared
        n_bytes = sum(part.nbytes for part in memory)
        copies.sample(memory)
        with peak.watch():
            moved.append(timed_us(partial(cache.grow, target)))
        freed.append(timed_us(memory.clear))
        del cache
    report_move(bench, "grow", case, moved, n_bytes, copies.gb_s(), peak)
    bench.report("grow", bench.named("frees the smaller"), freed, n_bytes=0, ceilings={})


def report_move(
    bench: Bench,
    name: str,
    case: str,
    samples: list[float],
    n_bytes: int,
    ceilings: dict[str, float],
    peak: PeakMemory,
) -> None:
    """Report what fills new buffers, with the memory that it needed besides them."""
    memory = {"peak": peak.rise, "beyond_buffers": max(0, peak.rise - n_bytes)}
    bench.report(
        name, bench.named(case), samples, n_bytes=n_bytes, ceilings=ceilings, memory=memory
    )


def save(bench: Bench, held: Held) -> Path | None:
    """Save to a file, if the disk has room for it; the file."""
    path, probe = bench.folder / "cache", bench.folder / "plain"
    n_bytes = sum(memory.nbytes for memory in memory_of(held.cache))
    free = disk_usage(bench.folder).free
    if n_bytes + RESERVE_BYTES > free:
        reason = f"needs {gb(n_bytes)} of disk; {bench.folder} has {gb(free)}"
        bench.report.skip("save", bench.case, reason)
        return None
    tokens, peak = [0] * held.cache.position, PeakMemory()
    plain, samples = [], []
    for _ in range(bench.repeats):
        path.unlink(missing_ok=True)
        plain.append(write_file_us(probe, n_bytes, NOISE))
        with peak.watch():
            samples.append(timed_us(lambda: save_cache(path, held.cache, tokens=tokens)))
    bench.report(
        "save",
        bench.case,
        samples,
        n_bytes=path.stat().st_size,
        ceilings={"disk_write": rate_gb_s(n_bytes, plain)},
        memory={"beyond_buffers": peak.rise},
    )
    return path


def load(bench: Bench, path: Path) -> None:
    """Load the file again, from the page cache, then from the disk where the system can."""
    if bench.fits("load", "into a new cache", bench.plan.n_bytes):
        read_file_us(path)
        measure_load(bench, path, "page_cache")
        if forget_file(path):
            measure_load(bench, path, "disk")
        else:
            reason = "this system cannot be told to forget a file"
            bench.report.skip("load", bench.named("from disk"), reason)
    path.unlink()


def measure_load(bench: Bench, path: Path, source: str) -> None:
    """Load a file, and read it plainly, from the page cache or the disk."""
    n_bytes, peak = path.stat().st_size, PeakMemory()
    fingerprint = Fingerprint(bench.plan.config, bench.plan.row_dtype)
    calls: dict[str, Callable[[], float]] = {
        f"{source}_read": lambda: read_file_us(path),
        f"{source}_to_fresh": lambda: read_file_us(path, fresh_memory(n_bytes)),
        "load": lambda: timed_us(lambda: load_cache(path, bench.plan, fingerprint)),
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(bench.repeats):
        for name, call in calls.items():
            if source == "disk":
                forget_file(path)
            warm_memory(n_bytes)
            with peak.watch() if name == "load" else nullcontext():
                samples[name].append(call())
    loads = samples.pop("load")
    ceilings = {name: rate_gb_s(n_bytes, plain) for name, plain in samples.items()}
    case = f"from {source.replace('_', ' ')}"
    report_move(bench, "load", case, loads, n_bytes, ceilings, peak)


def gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
