"""Fixtures that every test may use."""

from collections.abc import Callable, Iterator

import mlx.core  # noqa: F401 - registers the array types that _ext needs
import pytest

from mlx_dsv4 import _ext


@pytest.fixture(params=_ext.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once per instruction set of this CPU."""
    best = _ext.isa()
    _ext.set_isa(request.param)
    yield request.param
    _ext.set_isa(best)


@pytest.fixture
def each_isa() -> Iterator[Iterator[str]]:
    """Iterates over the instruction sets inside one test, to compare their results."""

    def sets() -> Iterator[str]:
        for name in _ext.available_isas():
            _ext.set_isa(name)
            yield name

    best = _ext.isa()
    yield sets()
    _ext.set_isa(best)


@pytest.fixture
def each_thread_count() -> Iterator[Callable[[], Iterator[int]]]:
    """Iterates over numbers of threads, to compare results."""

    def counts() -> Iterator[int]:
        for n in (1, 2, 5):
            _ext.set_num_threads(n)
            yield n

    usual = _ext.num_threads()
    yield counts
    _ext.set_num_threads(usual)
