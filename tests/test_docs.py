"""The Python of the README, the pages and the examples runs as it stands."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from mlx_dsv4 import Params
from tiny_models import tiny_model

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python" in page.read_text()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    (folder / "model.gguf").symlink_to(tiny_model().path)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run_in_order(page: Path, folder: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_table_of_params_has_every_field_and_its_default() -> None:
    page = (ROOT / "docs/engine.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| `([^`]*)` \|", page, re.MULTILINE)
    names = [name for name, _ in rows]
    assert sorted(names) == sorted(field.name for field in fields(Params))
    for name, default in rows:
        assert repr(getattr(Params(), name)) == default, name


def test_the_example_prints_text_and_statistics(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/generate.py"), "model.gguf", "def f(x):"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "length, Usage(prompt_tokens=" in done.stdout
