"""The list of seeded bugs fits the shaders, the tests and the page."""

import shutil
from pathlib import Path

import pytest

from seeded_bugs import PAGE, ROOT, SEEDED_BUGS, TABLE, SeededBug, table


@pytest.mark.parametrize("bug", SEEDED_BUGS, ids=lambda bug: f"{bug.file}: {bug.what}")
def test_a_seeded_bug_still_applies(bug: SeededBug, tmp_path: Path) -> None:
    shutil.copy(ROOT / "metal" / bug.file, tmp_path)
    bug.seed(tmp_path)
    file, name = bug.test.split("::")
    assert f"def {name}(" in (ROOT / "tests/kernels" / file).read_text()


def test_every_shader_has_seeded_bugs() -> None:
    broken = {bug.test.split("::")[0].removeprefix("test_").split(".")[0] for bug in SEEDED_BUGS}
    shaders = {path.stem for path in (ROOT / "metal").glob("*.metal")}
    assert [name for name in sorted(shaders) if not any(b.startswith(name) for b in broken)] == []


def test_the_page_lists_the_seeded_bugs() -> None:
    assert TABLE.search(PAGE.read_text())[0] == table(), "run `python tests/seeded_bugs.py --page`"
