"""The list of seeded bugs fits the shaders, the tests and the page; some are run for real."""

import re
import shutil
from pathlib import Path

import pytest

from run_seeded_bugs import PAGE, ROOT, SHADERS, TABLE, outcome, table
from seeded_bugs import KINDS, SEEDED_BUGS, SeededBug

IDS = [f"{bug.file}: {bug.what}" for bug in SEEDED_BUGS]


@pytest.mark.parametrize("bug", SEEDED_BUGS, ids=IDS)
def test_a_seeded_bug_still_applies(bug: SeededBug, tmp_path: Path) -> None:
    shutil.copy(SHADERS / bug.file, tmp_path)
    bug.seed(tmp_path)
    assert (tmp_path / bug.file).read_text() != (SHADERS / bug.file).read_text()
    file, name = bug.test.split("::")
    runs_on_the_simulator = rf"def {name}\([^)]*\b(executor|gpu|simulator): str"
    assert re.search(runs_on_the_simulator, (ROOT / "tests/kernels" / file).read_text())


def test_every_kind_and_every_shader_is_broken() -> None:
    assert set(KINDS) <= {bug.kind for bug in SEEDED_BUGS}
    tested = {bug.test.split("::")[0] for bug in SEEDED_BUGS}
    unbroken = [
        path.stem
        for path in sorted(SHADERS.glob("*.metal"))
        if not any(file.startswith(f"test_{path.stem}") for file in tested)
    ]
    assert unbroken == []


def test_the_page_lists_the_seeded_bugs() -> None:
    listed = TABLE.search(PAGE.read_text())
    assert listed is not None
    assert listed[0] == table(), "run `python tests/run_seeded_bugs.py --page`"


# The others are run by `make seeded-bugs`.
@pytest.mark.simulated
@pytest.mark.parametrize("kind", ["barrier", "alignment"])
def test_a_seeded_bug_is_caught(kind: str) -> None:
    bug = next(bug for bug in SEEDED_BUGS if bug.kind == kind)
    result = outcome(bug)
    assert result.caught, result.by
