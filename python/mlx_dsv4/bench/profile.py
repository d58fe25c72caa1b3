"""Where a decoded token's time goes: per kernel, in Python, and how many nodes its graph has."""

import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.bench.harness import Report

Step = Callable[[], mx.array]  # one token more, its result still to be computed
STEPS = 12


@dataclass
class Times:
    """Of kernels that ran one after another.

    Attributes:
        kernel_us: Microseconds by kernel.
        calls: Calls by kernel.
        between_us: Microseconds of MLX's own ops between them.
    """

    kernel_us: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)
    between_us: float = 0.0


class TimedExtension:
    """Takes the extension's place in the ops: every kernel waits for its inputs and is timed."""

    def __init__(self, extension: ModuleType, times: Times) -> None:
        self._extension = extension
        self._times = times

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._extension, name)
        return self._timed(name, attribute) if callable(attribute) else attribute

    def _timed(self, name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            mx.eval([a for a in (*args, *kwargs.values()) if isinstance(a, mx.array)])
            ready = time.perf_counter()
            result = op(*args, **kwargs)
            mx.eval(result)
            self._times.between_us += (ready - begun) * 1e6
            self._times.kernel_us[name] += (time.perf_counter() - ready) * 1e6
            self._times.calls[name] += 1
            return result

        return call


@contextmanager
def timed_kernels() -> Iterator[Times]:
    """Kernels called inside are evaluated at once, and timed."""
    times = Times()
    prefix = f"{ops.__name__}."
    modules = [module for name, module in sys.modules.items() if name.startswith(prefix)]
    kept = {module: module._ext for module in modules if hasattr(module, "_ext")}
    for module, extension in kept.items():
        setattr(module, "_ext", TimedExtension(extension, times))  # noqa: B010 - not a known name
    try:
        yield times
    finally:
        for module, extension in kept.items():
            setattr(module, "_ext", extension)  # noqa: B010


@contextmanager
def only_recorded() -> Iterator[None]:
    """Inside, nothing is computed that only ``mx.async_eval`` asks for."""
    evaluate = mx.async_eval
    mx.async_eval = lambda *_: None
    try:
        yield
    finally:
        mx.async_eval = evaluate


def graph_nodes(result: mx.array) -> Counter[str]:
    """Nodes of a graph that is still to be computed, by their kind."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        mx.export_to_dot(str(path), result)
        lines = [line for line in path.read_text().splitlines() if "shape=rectangle" in line]
    return Counter(line.split('"')[1] for line in lines)


def profile(report: Report, case: str, n_layers: int, step: Step) -> None:
    """Report the kernels of a step by their time, its graph, and what Python takes of it.

    Args:
        report: Takes the figures.
        case: Where the step stands, in words.
        n_layers: Of the model.
        step: Makes one token; is called some thirty times.
    """
    step_us = [timed(lambda: mx.eval(step()))[0] for _ in range(STEPS)]
    median = statistics.median(step_us[1:])
    recorded_us = []
    for _ in range(STEPS):
        with only_recorded():
            us, result = timed(step)
        recorded_us.append(us)
        nodes = graph_nodes(result)
        mx.eval(result)
    python_us = statistics.median(recorded_us[1:])
    report.figures(
        "step",
        case,
        f"{median:10.1f} us, of which Python {python_us:.0f} us ({python_us / median:.1%}); "
        f"{nodes.total()} graph nodes, {nodes.total() / n_layers:.1f} a layer",
        {"us_p50": median, "python_us": python_us, "nodes": nodes.total(), "kinds": nodes},
    )
    report_kernels(report, case, step)


def report_kernels(report: Report, case: str, step: Step) -> None:
    """One line for each kernel. Alone each pays for its own start, which a whole step hides."""
    with timed_kernels() as first:
        mx.eval(step())
    with timed_kernels() as times:
        for _ in range(STEPS):
            mx.eval(step())
    assert first.calls.keys() == times.calls.keys()
    slowest = sorted(times.kernel_us.items(), key=lambda item: -item[1])
    rows = [*slowest, ("MLX's ops between", times.between_us)]
    total = sum(us for _, us in rows)
    for name, us in rows:
        calls = times.calls[name] // STEPS
        words = f"{us / STEPS:10.1f} us {us / total:6.1%}" + (f", {calls} calls" if calls else "")
        figures = {"us": round(us / STEPS, 1), "share": round(us / total, 4), "calls": calls}
        report.figures(name, case, words, figures)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = call()
    return (time.perf_counter() - begun) * 1e6, result
