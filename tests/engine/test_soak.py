"""A short soak passes, and turns red when the engine is wrong; `make soak` runs a long one."""

import subprocess
import sys
from pathlib import Path

import pytest

import soak
from mlx_dsv4.engine import scheduler, session, slots
from mlx_dsv4.engine.run import Run

ROOT = Path(__file__).parents[2]
PATHS = (".", "python", "tests/model", "tests")


def test_clients_of_all_kinds_get_what_is_right() -> None:
    command = [sys.executable, str(ROOT / "tests/engine/soak.py"), "--seconds", "20"]
    paths = [str(ROOT / folder) for folder in PATHS]
    done = subprocess.run(
        [*command, "--seed", "1"],
        env={"PYTHONPATH": ":".join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens\n" in done.stdout


def failures() -> str:
    journal = soak.soak(16, seed=1)
    return "\n".join(journal.failures)


def test_logits_of_another_session_turn_it_red(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = scheduler.Scheduler._draw

    def swapped(self: scheduler.Scheduler, states: list) -> None:  # type: ignore[type-arg]
        runs, rows = zip(*states, strict=True)
        draw(self, list(zip(runs, rows[::-1], strict=True)))

    monkeypatch.setattr(scheduler.Scheduler, "_draw", swapped)
    assert "a cold run gives" in failures()


def test_a_branch_from_other_tokens_turns_it_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "common_prefix", lambda prompt, ledger: len(prompt))
    found = failures()
    assert "of tokens that nobody has read" in found
    assert "a cold run gives" in found


def test_a_lost_event_turns_it_red(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Run._tell
    told = iter(range(1_000_000))

    def forgetful(self: Run, event: object) -> None:
        if next(told) % 100 != 99:
            tell(self, event)  # type: ignore[arg-type]

    monkeypatch.setattr(Run, "_tell", forgetful)
    assert "the events have the text" in failures()


def test_a_deadlock_ends_it_with_the_stacks_of_all_threads() -> None:
    program = (
        "import soak; from mlx_dsv4.engine.stream import Mailbox; "
        "soak.SILENCE_SECONDS = 3; Mailbox.put = lambda self, item: None; soak.soak(30, 1)"
    )
    paths = [str(ROOT / folder) for folder in (*PATHS, "tests/engine")]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Timeout (0:00:03)!" in done.stderr
    assert "in take" in done.stderr
    assert "in run_forever" in done.stderr


def test_sessions_that_stay_open_turn_it_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_release", lambda *_: None)
    monkeypatch.setattr(soak, "THREADS", 0)

    class Opens(soak.AsyncClient):
        def run(self, until: float) -> None:
            self.engine.session().close()

    monkeypatch.setattr(soak, "AsyncClient", Opens)
    assert "no client is left, and the engine has" in failures()
