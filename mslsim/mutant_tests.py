"""pytest plugin of a mutation run: the tests on the simulator, the likeliest to fail first."""

from pathlib import Path

import pytest

SIMULATORS = {"sim", "sim-check"}
PARAMETERS = ("executor", "gpu", "simulator")
# Fixtures that run one test on the simulator several times.
ITERATORS = {"each_order", "each_executor"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first", action="append", default=[], help="node id of a test to run first")
    parser.addoption("--killer", type=Path, help="file that gets the node id of a failing test")


def is_simulated(item: pytest.Item) -> bool:
    """Whether the test runs a shader."""
    call = getattr(item, "callspec", None)
    params = call.params if call else {}
    if any(params.get(name) in SIMULATORS for name in PARAMETERS):
        return True
    return not ITERATORS.isdisjoint(getattr(item, "fixturenames", ()))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first = config.getoption("--first")
    rank = {nodeid: i for i, nodeid in enumerate(first)}
    kept = [item for item in items if is_simulated(item)]
    items[:] = sorted(kept, key=lambda item: rank.get(item.nodeid, len(rank)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and KILLER is not None:
        KILLER.write_text(report.nodeid)


KILLER: Path | None = None


def pytest_configure(config: pytest.Config) -> None:
    global KILLER
    KILLER = config.getoption("--killer")
