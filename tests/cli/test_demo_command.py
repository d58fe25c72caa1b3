"""``--demo``: what the README shows is what a newcomer sees."""

import ast
import re
import shlex
from pathlib import Path

from test_cli import run

ROOT = Path(__file__).parents[2]


def test_the_demo_model_writes_python_as_the_readme_shows() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"```console\n\$ mlx-dsv4 (generate --demo .*?)\n(.*?)```", readme, re.DOTALL)
    assert shown is not None
    command, text = shown.groups()
    done = run(*shlex.split(command))
    assert done.stdout == text
    prompt = shlex.split(command)[shlex.split(command).index("--prompt") + 1]
    whole_lines = (prompt + done.stdout).rsplit("\n", 2)[0]
    assert ast.parse(whole_lines).body


def test_chat_answers_in_the_form_that_it_was_taught() -> None:
    """Asked for a function, the model begins a block of code, whatever it does."""
    command = ["chat", "--demo", "--no-thinking", "--temperature", "0", "--max-tokens", "60"]
    done = run(*command, typed="Write a function `clear`: Remove all items.\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("```python\ndef clear(")
