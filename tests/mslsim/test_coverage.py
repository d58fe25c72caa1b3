"""Coverage names the lines of a shader that have not run, over all libraries and processes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mslsim import Library
from mslsim.coverage import line_coverage, save_points, uncovered_lines  # noqa: F401
from mslsim.exceptions_list import read_exceptions

pytestmark = pytest.mark.simulated

SHADER = """\
#include <metal_stdlib>
using namespace metal;

inline float twice(float x) {
  for (int i = 0; i < 2; ++i) {
    x = precise::exp(x);
  }
  return x;
}

inline float unused(float x) {
  return x;
}

template <bool kTwice>
[[kernel]] void change(
    device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (kTwice) {
    out[i] = twice(out[i]);
  } else {
    out[i] = precise::sin(out[i]);
  }
  if (out[i] > 100.0f) {
    out[i] = precise::log(out[i]);
  }
}

[[kernel]] void other(
    device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = 0.0f;
}
"""
LARGE = "out[i] = precise::log(out[i]);"


@pytest.fixture
def shaders(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder of one shader, with a name that no other test uses."""
    folder = tmp_path / "shaders"
    folder.mkdir()
    (folder / f"{request.node.name}.metal").write_text(SHADER)
    (folder / "contract.h").write_text("#pragma once\n\nstruct Params {\n  int n;\n};\n")
    return folder


def run(shaders: Path, value: float, *, twice: bool) -> None:
    """Runs one instantiation, from a library of its own."""
    (path,) = shaders.glob("*.metal")
    name = f"change_{int(twice)}"
    instantiate = [(name, f"change<{str(twice).lower()}>")]
    library = Library(path, instantiate=instantiate, only=[name], mode="cov")
    out = np.full(4, value, np.float32)
    library.kernel(name).dispatch([out], threads=4, threadgroup=4)


def run_other(shaders: Path) -> None:
    """Runs the kernel that is no template: there is a copy of it that nothing calls."""
    (path,) = shaders.glob("*.metal")
    library = Library(path, only=["other"], mode="cov")
    library.kernel("other").dispatch([np.ones(4, np.float32)], threads=4, threadgroup=4)


def missed(shaders: Path, folder: Path | None = None) -> list[tuple[str, str]]:
    """Function and text of the uncovered lines."""
    return [(line.place, line.text) for line in uncovered_lines(shaders, folder)]


def test_a_branch_that_no_thread_takes_is_named(shaders: Path) -> None:
    run(shaders, 1.0, twice=False)
    assert ("change", LARGE) in missed(shaders)
    run(shaders, 10.0, twice=True)
    assert ("change", LARGE) not in missed(shaders)


def test_instantiations_are_merged(shaders: Path) -> None:
    run(shaders, 10.0, twice=True)
    run(shaders, 1.0, twice=False)
    places = {place for place, _ in missed(shaders)}
    assert places == {"unused", "other"}


def test_functions_that_were_never_compiled_are_named(shaders: Path) -> None:
    run(shaders, 1.0, twice=False)
    assert ("unused", "inline float unused(float x) {") in missed(shaders)
    assert ("twice", "inline float twice(float x) {") in missed(shaders)
    assert ("other", "out[i] = 0.0f;") in missed(shaders)  # compiled along, but not launched
    run_other(shaders)
    assert "other" not in {place for place, _ in missed(shaders)}


def test_processes_are_merged(shaders: Path, tmp_path: Path) -> None:
    run(shaders, 1.0, twice=False)
    saved = tmp_path / "saved"
    saved.mkdir()
    code = (
        "import sys; from pathlib import Path; import test_coverage as t\n"
        "t.run(Path(sys.argv[1]), 10.0, twice=True); t.save_points(Path(sys.argv[2]))"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    subprocess.run(
        [sys.executable, "-c", code, str(shaders), str(saved)],
        check=True,
        cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert ("change", LARGE) in missed(shaders)
    assert ("change", LARGE) not in missed(shaders, saved)


def test_lines_are_counted_once_for_every_library(shaders: Path) -> None:
    run(shaders, 1.0, twice=False)
    run(shaders, 1.0, twice=False)
    (path,) = shaders.glob("*.metal")
    (coverage,) = line_coverage(path.name).values()
    assert coverage.ran < coverage.seen
    texts = [SHADER.splitlines()[line - 1].strip() for line in coverage.missed]
    assert texts.count(LARGE) == 1


def test_a_listed_line_needs_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("a.h f\n- return x;\nOf the host.\n")
    assert read_exceptions(path, "-") == {("a.h", "f", "return x;"): "Of the host."}
    path.write_text("a.h f\n- return x;\n")
    with pytest.raises(ValueError, match="and a reason"):
        read_exceptions(path, "-")


GATE = "tests/mslsim/test_shader_coverage.py::test_every_line_of_every_shader_runs"
PARTIAL_RUNS = {
    "some files": ["tests/kernels/test_route.py", "tests/mslsim/test_shader_coverage.py"],
    "other executors": ["tests/kernels", GATE.partition("::")[0], "-k", "not sim-check"],
    "the check alone": [GATE],
}


@pytest.mark.parametrize("arguments", PARTIAL_RUNS.values(), ids=PARTIAL_RUNS)
def test_a_partial_run_does_not_judge(arguments: list[str]) -> None:
    assert GATE not in collected(arguments)


def test_a_whole_run_judges_last() -> None:
    tests = collected([GATE.partition("::")[0], "tests/kernels"])
    assert tests[-1] == GATE


def collected(arguments: list[str]) -> list[str]:
    """The tests that pytest would run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header", "-p"]
    done = subprocess.run(
        [*command, "no:cacheprovider", *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,  # it fails where it collects nothing
    )
    return [line for line in done.stdout.splitlines() if "::" in line]
