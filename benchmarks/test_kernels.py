"""The kernels' benchmarks under pytest-benchmark, for comparing runs and commits.

    pytest benchmarks/test_kernels.py --benchmark-autosave
    pytest benchmarks/test_kernels.py -k "indexer or attention" --benchmark-compare

Its cases are those of `mlx-dsv4 bench kernels`, whose lines say how near the ceilings they come.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import mlx.core as mx
import pytest

from mlx_dsv4.bench import FAMILIES

ROUNDS, WARM_UP = 20, 3
Call = Callable[[], Any]


class Numbered(list[float]):
    """Samples of a call that was not made, which know the call's place in its family."""

    def __init__(self, place: int) -> None:
        super().__init__([1.0])
        self.place = place


def run_family(family: str, timed: Callable[[int, Call], None]) -> list[tuple[str, int]]:
    """Prepare every case of a family; what each is called, and its place."""
    module: Any = import_module(f"mlx_dsv4.bench.{family}")
    cases: list[tuple[str, int]] = []
    places = iter(range(1000))

    def time_us(call: Call, **_: object) -> Numbered:
        samples = Numbered(next(places))
        timed(samples.place, call)
        return samples

    def report(name: str, case: str, samples: list[float], **_: object) -> None:
        if isinstance(samples, Numbered):
            cases.append((f"{name} {case}", samples.place))

    kept = module.time_us
    module.time_us = time_us
    try:
        module.run(report)
    finally:
        module.time_us = kept
    return cases


@cache
def cases_of(family: str) -> list[tuple[str, int]]:
    return run_family(family, lambda place, call: None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    cases = [
        pytest.param(family, place, id=f"{family}: {name}")
        for family in FAMILIES
        for name, place in cases_of(family)
    ]
    metafunc.parametrize(("family", "place"), cases)


def test_kernel(benchmark: Any, family: str, place: int) -> None:
    def timed(at: int, call: Call) -> None:
        if at == place:
            benchmark.pedantic(
                lambda: mx.eval(call()), rounds=ROUNDS, warmup_rounds=WARM_UP, iterations=1
            )

    run_family(family, timed)
