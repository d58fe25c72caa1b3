"""Lets the checks of what kernel tests ran come last, and only where all of them ran."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from executors import HAS_SIMULATOR

KERNEL_TESTS = Path(__file__).parents[1] / "kernels"
GATES = {
    "test_every_line_of_every_shader_runs",
    "test_every_kernel_that_a_test_runs_has_a_cubin",
    "test_every_kernel_with_a_cubin_is_checked",
}
CHECKED = "sim-check"


def is_gate(item: pytest.Item) -> bool:
    return item.name in GATES and item.path.parent == Path(__file__).parent


def checks_a_shader(item: pytest.Item) -> bool:
    """Whether the test covers lines of a shader."""
    call = getattr(item, "callspec", None)
    params = call.params if call else {}
    return CHECKED in (params.get(name) for name in ("executor", "gpu", "simulator"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Drops the checks, as deselected, where a kernel test of sim-check is left out."""
    wanted = {
        item
        for item in items
        if checks_a_shader(item) and item.get_closest_marker("realistic") is None
    }
    collected = {item.path for item in items if item.path.parent == KERNEL_TESTS}
    yield
    named = any("::" in argument for argument in config.args)
    complete = (
        HAS_SIMULATOR
        and not named
        and collected.issuperset(KERNEL_TESTS.glob("test_*.py"))
        and wanted.issubset(items)
    )
    gates = [item for item in items if is_gate(item)]
    others = [item for item in items if not is_gate(item)]
    if gates and not complete:
        config.hook.pytest_deselected(items=gates)
    items[:] = others + (gates if complete else [])
