"""Every line of every shader runs in the simulator's check mode, or is listed with a reason."""

from pathlib import Path

import pytest

from mslsim.coverage import functions_of, uncovered_lines
from mslsim.exceptions_list import read_exceptions

SHADERS = Path(__file__).parents[2] / "metal"
LISTED = Path(__file__).parent / "uncovered_lines.txt"


def test_every_line_of_every_shader_runs() -> None:
    """Runs after all kernel tests; conftest.py deselects it where some of them are left out."""
    listed = read_exceptions(LISTED, "-")
    missed = [str(line) for line in uncovered_lines(SHADERS) if line.name not in listed]
    if missed:
        pytest.fail("\n".join(["no test runs these lines in check mode:", *missed]), pytrace=False)


def test_every_listed_line_exists() -> None:
    """Which small functions leave code differs among compilers, so some of them may run too."""
    known = {
        (path.name, function.name, " ".join(line.split()))
        for path in SHADERS.iterdir()
        if path.suffix in {".metal", ".h"}
        for function in functions_of(path, set())
        for line in function.code.splitlines()
    }
    assert [name for name in read_exceptions(LISTED, "-") if name not in known] == []
