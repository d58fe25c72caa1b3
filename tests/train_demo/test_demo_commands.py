"""What the trainer's commands say about missing folders and devices that torch does not have."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.train_demo.__main__ import app


def refusal(*arguments: str | Path) -> str:
    """The words of a refusal, without the frame around them."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 2, done.output
    return "".join(done.output.translate({ord(mark): None for mark in "│╭╰─╮╯"}).split())


@pytest.mark.parametrize("command", ["train", "export", "measure"])
def test_a_folder_that_is_not_prepared_is_named(command: str, tmp_path: Path) -> None:
    said = refusal(command, "--prepared", tmp_path / "none", "--out", tmp_path)
    assert "none/chat.npymustbewhat`prepare`writes;gotnosuchfile" in said
    assert list(tmp_path.iterdir()) == []


def test_missing_weights_log_and_model_are_named(tmp_path: Path) -> None:
    (tmp_path / "chat.npy").touch()
    folders = ["--prepared", tmp_path, "--out", tmp_path]
    model = tmp_path / "none" / "model.gguf"
    assert "weights.ptmustbewhat`train`writes" in refusal("export", *folders, "--model", model)
    assert not model.parent.exists()
    assert "model.ggufmustbewhat`export`writes" in refusal("measure", *folders, "--model", model)
    assert "log.jsonlmustbewhat`train`writes" in refusal("plot", "--out", tmp_path)


@pytest.mark.oracle
@pytest.mark.parametrize("device", ["gpu", "meta"])
def test_a_device_that_computes_nothing_here_is_refused(device: str, tmp_path: Path) -> None:
    (tmp_path / "chat.npy").touch()
    said = refusal("train", "--prepared", tmp_path, "--out", tmp_path, "--device", device)
    assert f"--devicemustbeonethattorchhashere;got{device}(" in said
