"""The fuzzer of files: a few of its inputs, and that it sees what it is there for."""

import re
import sys
from pathlib import Path

import pytest

from fuzz.corpus import corpus
from fuzz.files import fuzz, watch
from fuzz.mutations import make_input
from fuzz.reading import read_everything

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its limits are Linux's")


def run(code: str) -> list[str]:
    return [sys.executable, "-c", f"from fuzz import reading\n{code}"]


def test_mutated_files_are_read_or_refused() -> None:
    result = fuzz(0, count=100)
    assert result.reason == ""
    assert result.summary.startswith("100 ")
    assert " ok=" in result.summary  # some get as far as a step of the model


@pytest.mark.parametrize("files", corpus(), ids=min)
def test_every_valid_model_runs(files, tmp_path: Path) -> None:
    for name, document in files.items():
        (tmp_path / name).write_bytes(document.encode().raw)
    outcomes = read_everything(tmp_path / min(files))
    if len(next(iter(files.values())).tensors) > 10 or len(files) > 1:
        assert set(outcomes) == {"ok"}
    else:
        assert "ok" in outcomes


def test_an_input_is_the_same_whatever_came_before() -> None:
    first = [make_input(3, index) for index in range(20)]
    assert [make_input(3, index) for index in reversed(range(20))] == first[::-1]
    assert make_input(4, 0) != first[0]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("raise KeyError(1)", "exit code 1\n(.|\n)*KeyError: 1"),
        ("bytearray(1 << 28)", "exit code 1\n(.|\n)*MemoryError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("while True: pass", "too much processor time"),
        ("import time; time.sleep(60)", "too much time"),
    ],
)
def test_what_an_input_does_is_seen(what: str, reason: str) -> None:
    limits = "reading.MOST_CPU_S, reading.MOST_S = 0.2, 5 if 'while' in what else 0.5"
    code = f"what = {what!r}\n{limits}\nprint('input 7', flush=True)\n"
    result = watch(run(f"{code}with reading.bounds(1000): exec(what)"))
    assert result.index == 7
    assert re.search(reason, result.reason)


def test_a_missing_check_is_found() -> None:
    code = "from mlx_dsv4.gguf import header\nheader._Cursor.need = lambda *_: None\n"
    result = watch(run(f"{code}reading.main(0, 0, 100, 1e9)"))
    assert result.index is not None
    assert "struct.error" in result.reason
