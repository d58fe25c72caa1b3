"""Every line of every shader runs in the simulator's check mode, or is listed with a reason."""

from pathlib import Path

from mslsim.coverage import uncovered_lines
from mslsim.exceptions_list import read_exceptions

SHADERS = Path(__file__).parents[2] / "metal"
LISTED = Path(__file__).parent / "uncovered_lines.txt"


def test_every_line_of_every_shader_runs() -> None:
    """Runs after all kernel tests; conftest.py deselects it where some of them are left out."""
    listed = read_exceptions(LISTED, "-")
    uncovered = uncovered_lines(SHADERS)
    missed = [str(line) for line in uncovered if line.name not in listed]
    covered = [name for name in listed if name not in {line.name for line in uncovered}]
    assert "\n".join(missed) == "", "lines that no test runs in check mode"
    assert covered == [], "lines that are listed as uncovered but run"
