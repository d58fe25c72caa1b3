"""Fixtures that every test may use."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import pytest

from executors import (
    EXECUTORS,
    HAS_SIMULATOR,
    NEEDS_SIMULATOR,
    ORDERS,
    SIMULATORS,
    cuda_problem,
    order_of,
    running_on,
    use_shaders_of,
)
from mlx_dsv4 import _ext, ops


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--metal-sources",
        type=Path,
        help="folder of the .metal files that are compiled for the simulator and for CUDA, instead "
        "of those in the extension",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell that starts the tests in the background has the programs they start ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if NEEDS_SIMULATOR and not HAS_SIMULATOR:
        raise pytest.UsageError(
            "the Metal simulator is not built: `make tools` builds it, or reinstall with "
            "--config-settings=cmake.define.DSV4_SIMULATOR=ON"
        )
    if os.environ.get("DSV4_REQUIRE_CUDA") and (problem := cuda_problem()):
        raise pytest.UsageError(
            f"DSV4_REQUIRE_CUDA is set, but no kernel can run on an NVIDIA GPU here: {problem}"
        )
    if config.option.metal_sources is not None:
        folder: Path = config.option.metal_sources
        if not any(folder.glob("*.metal")):
            raise pytest.UsageError(
                f"--metal-sources must be a folder of .metal files; got {folder}"
            )
        use_shaders_of(folder.resolve())


def pytest_report_header() -> str:
    return f"executors: {', '.join(EXECUTORS)}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drops what cannot run here, as deselected: nothing counts as passed or skipped."""
    dropped = [item for item in items if not can_run(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


def can_run(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    executor = call and (call.params.get("executor") or call.params.get("gpu"))
    if executor == "sim-check" and item.get_closest_marker("realistic"):
        return False
    if not HAS_SIMULATOR and needs_simulator(item):
        return False
    return mx.metal.is_available() or item.get_closest_marker("metal") is None


def needs_simulator(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    return item.get_closest_marker("simulated") is not None or bool(
        fixtures & {"each_order", "simulator"}
    )


def marked(names: Iterable[str]) -> list[object]:
    """Executors as parameters; those on a real GPU have a marker of their name."""
    marks = {"metal": [pytest.mark.metal], "cuda": [pytest.mark.cuda]}
    return [pytest.param(name, marks=marks.get(name, [])) for name in names]


def executor_params() -> list[object]:
    return marked(EXECUTORS)


def gpu_params() -> list[object]:
    return marked([*(name for name in (*SIMULATORS, "cuda") if name in EXECUTORS), "metal"])


@pytest.fixture(params=executor_params())
def executor(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once per instruction set, on the simulated GPU, and on a real one."""
    order, seed = order_of(request.node.nodeid, request.param)
    with running_on(request.param, order=order, seed=seed):
        yield request.param


@pytest.fixture
def each_executor() -> Callable[[], Iterator[str]]:
    """Iterates over the executors inside one test."""

    def executors() -> Iterator[str]:
        for name in EXECUTORS:
            with running_on(name, order="random"):
                yield name

    return executors


@pytest.fixture
def each_order() -> Callable[[], Iterator[str]]:
    """Iterates over the orders in which simulated threads run, in fast mode."""

    def orders() -> Iterator[str]:
        for order in ORDERS:
            with running_on("sim", order=order, seed=1):
                yield order

    return orders


@pytest.fixture(params=gpu_params())
def gpu(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on the simulated GPU, in both modes, and on a real one."""
    order, seed = order_of(request.node.nodeid, request.param)
    with running_on(request.param, order=order, seed=seed):
        yield request.param


@pytest.fixture(params=SIMULATORS)
def simulator(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on the simulated GPU only, in both modes."""
    order, seed = order_of(request.node.nodeid, request.param)
    with running_on(request.param, order=order, seed=seed):
        yield request.param


@pytest.fixture(params=_ext.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once per instruction set of this CPU."""
    with running_on(request.param):
        yield request.param


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


@pytest.fixture
def nan_in_new_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fills new buffers of caches with NaN: memory that is used again may hold the right rows."""

    def filled(shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
        buffer = ops.uninitialized(shape, dtype)
        ops.host_bytes(buffer).fill(0xFF)
        return buffer

    monkeypatch.setattr("mlx_dsv4.cache.layer.uninitialized", filled)
