"""The Python of the README, the pages and the examples runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_example_prints_text_and_statistics(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/generate.py"), "model.gguf", "def f(x):"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "length, Usage(prompt_tokens=" in done.stdout
