"""``mlx-dsv4 convert`` as a user types it."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from released import make_released

COMMAND = [sys.executable, "-m", "mlx_dsv4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_released().write(tmp_path_factory.mktemp("convert") / "DeepSeek-V4 tiny")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True)


def test_a_checkpoint_is_converted_inspected_and_run(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = run("convert", folder, out)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    line = rf"{out}: 154 tensors, {out.stat().st_size} bytes, \d+\.\d s; "
    assert re.fullmatch(line + r"left out 2 of draft parts: mtp\.0, layers\.5\n", done.stdout)
    card = run("inspect", out)
    assert card.returncode == 0, card.stdout
    assert "DeepSeek-V4 tiny" in card.stdout
    text = run("generate", "--model", out, "--prompt", "def f(x):", "--max-tokens", "8")
    assert text.returncode == 0, text.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_options_choose_format_and_name_and_replace_by_force(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    refused = run("convert", folder, out)
    assert refused.returncode == 1
    assert "out.gguf: exists; --force replaces it" in refused.stderr
    assert out.read_text() == "precious"
    done = run("convert", folder, out, "--dense", "bf16", "--name", "Another", "--force")
    assert done.returncode == 0, done.stderr
    card = run("inspect", out).stdout
    assert "Another" in card
    assert "q8_0" not in card
    assert run("convert", folder, out, "--dense", "q4_0").returncode == 2


def test_paths_may_be_no_text_and_the_name_of_the_model_must_be(
    folder: Path, tmp_path: Path
) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    odd.symlink_to(folder)
    done = run("convert", odd, tmp_path / "out.gguf", "--name", os.fsdecode(b"na\xefve"))
    assert done.returncode == 1
    message = "the name of the model must be valid Unicode; got 'na\\udcefve'"
    assert done.stderr == f"mlx-dsv4: {message}\n"
    out = tmp_path / os.fsdecode(b"\xff.gguf")
    done = run("convert", odd, out)
    assert (done.returncode, done.stderr) == (0, "")
    assert out.exists()


@pytest.mark.parametrize("command", ["convert", "make-tiny", "make-full-size"])
def test_a_link_to_nowhere_is_followed_only_by_force(
    command: str, folder: Path, tmp_path: Path
) -> None:
    target, link = tmp_path / "target.gguf", tmp_path / "link.gguf"
    link.symlink_to(target)
    arguments = [command, *([folder] if command == "convert" else []), link]
    refused = run(*arguments)
    assert refused.returncode == 1
    assert refused.stderr == f"mlx-dsv4: {link}: exists; --force replaces it\n"
    assert list(tmp_path.iterdir()) == [link]
    done = run(*arguments, "--force")
    assert done.returncode == 0, done.stderr
    assert link.is_symlink()
    with target.open("rb") as file:
        assert file.read(4) == b"GGUF"


def test_a_refusal_is_one_message(folder: Path, tmp_path: Path) -> None:
    done = run("convert", tmp_path, tmp_path / "out.gguf")
    assert done.returncode == 1
    assert done.stderr == f"mlx-dsv4: {tmp_path}/config.json: No such file or directory\n"
    done = run("convert", folder, tmp_path / "no" / "out.gguf")
    assert done.returncode == 1
    assert "No such file" in done.stderr
    assert "Traceback" not in done.stderr
    shown = run("inspect", folder)
    assert "`mlx-dsv4 convert` makes a GGUF file of" in shown.stderr


def test_a_full_disk_is_named(folder: Path, tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -f 500; "$@"', "sh", *COMMAND, "convert"]
    done = subprocess.run([*limited, folder, tmp_path / "x.gguf"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "x.gguf: " in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_sees_a_progress_bar(folder: Path, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    arguments = [*COMMAND, "convert", folder, tmp_path / "x.gguf"]
    seen = b""
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=follower):
        os.close(follower)
        try:
            while piece := os.read(leader, 4096):
                seen += piece
        except OSError:  # the other side is closed
            pass
    os.close(leader)
    assert b"converting" in seen
