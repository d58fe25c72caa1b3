"""benchmarks/peers on a small model: processes, what cannot run, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks.peers import comparison
from benchmarks.peers.__main__ import main
from benchmarks.peers.comparison import Plan, Runs, rows_of
from benchmarks.peers.engines import ENTRIES, OURS, Entry
from benchmarks.peers.processes import MeasurementError, measured
from benchmarks.peers.worker import Measurement, Task, measure
from tiny_models import tiny_model

REFERENCE = "transformers float32"


def invoke(*arguments: str | Path) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(main)
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.output


@pytest.mark.oracle
def test_the_command_compares_us_with_transformers(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    options = ["--model", tiny_model().path, "--json", out, "--repeats", "1", "--decoded", "4"]
    # Threads that spin beside other tests would take many times as long.
    options += ["--attempts", "1", "--threads", "1"]
    code, output = invoke(
        "--contexts", "150", "--engines", f"{REFERENCE},{OURS}", *map(str, options)
    )
    assert code == 0, output
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    rows = [line for line in lines if "engine" in line]
    assert [(row["engine"], row["context"]) for row in rows] == [*((REFERENCE, 150), (OURS, 150))]
    for row in rows:
        assert row["missing"] == ""
        assert row["tokens"] == "same tokens"
        assert row["top1_share"] == 1.0
        # The bound of the parity tests on float32 files.
        assert row["max_logit_difference"] < 5e-4
        assert row["prefill_tps"] > 0 < row["decode_tps"]
        assert 2**26 < row["peak_bytes"] < 2**33
    # An engine that repeats the reference's own logits would have no difference at all.
    assert all(row["max_logit_difference"] > 0 for row in rows if row["engine"] == OURS)
    ratio = lines[-1]
    assert (ratio["context"], ratio["what"], ratio["peer"]) == (150, "decode", REFERENCE)
    assert "same tokens" in output


def test_an_engine_that_fails_says_what_it_printed(tmp_path: Path) -> None:
    path = tmp_path / "no-model.gguf"
    path.write_bytes(b"GGUX")
    task = Task(OURS, str(path), [3, 4], decoded=1, forced=None, threads=2)
    with pytest.raises(MeasurementError, match=r"worker ended with 1: .*no-model\.gguf"):
        measured(task, timeout_s=60)


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    task = Task(OURS, str(tmp_path / "any.gguf"), [3], decoded=1, forced=None, threads=2)
    with pytest.raises(MeasurementError, match=r"worker must end in 0 s; it did not"):
        measured(task, timeout_s=0.01)


def test_what_is_not_installed_has_a_row_with_the_command() -> None:
    entry = Entry("ghost", "ghost", ("no-such-engine-of-anybody", "numpy"))
    assert entry.version() is None
    (row,) = rows_of(128, [Runs(entry, None, f"not installed: {entry.install}")])
    assert row.missing == "not installed: pip install no-such-engine-of-anybody numpy"
    assert (row.engine, row.context, row.prefill_tps) == ("ghost", 128, None)


def test_a_failed_reference_leaves_the_next_engine_as_the_reference() -> None:
    logits = np.eye(3, dtype=np.float32)
    runs = [
        Runs(ENTRIES[0], "1", "failed: no memory"),
        Runs(ENTRIES[1], "1", "", [Measurement(1.0, 1.0, 1, [0, 1, 2], None)], logits),
        Runs(ENTRIES[4], "1", "", [Measurement(1.0, 1.0, 1, [0, 2, 2], None)], logits[[0, 2, 2]]),
    ]
    failed, ours, llama = rows_of(5, runs)
    assert failed.missing == "failed: no memory"
    assert ours.agreement is not None
    assert llama.agreement is not None
    assert (ours.agreement.top1, ours.tokens) == (1.0, "same tokens")
    assert (round(llama.agreement.top1, 2), llama.tokens) == (0.67, "other tokens")


@pytest.mark.parametrize(
    ("others", "attempts", "expected", "n_runs"),
    [
        ([0.9, 0.4, 0.05, 0.0], 4, 0.05, 3),
        ([0.9, 0.4, 0.6], 3, 0.4, 3),
        ([0.9, 0.0], 1, 0.9, 1),
        ([None, 0.0], 2, None, 1),
    ],
    ids=["until-quiet", "least", "one", "unknown"],
)
def test_a_disturbed_turn_is_measured_again(
    monkeypatch: pytest.MonkeyPatch,
    others: list[float | None],
    attempts: int,
    expected: float | None,
    n_runs: int,
) -> None:
    waiting = list(others)

    def measured_before(task: Task, timeout_s: float) -> tuple[Measurement, np.ndarray]:
        return Measurement(1.0, 1.0, 1, [0], waiting.pop(0)), np.eye(1, dtype=np.float32)

    monkeypatch.setattr(comparison, "measured", measured_before)
    plan = Plan(Path("any"), 10, [], [1], 1, 1, attempts, 1, 1.0)
    found, _ = comparison.least_disturbed(Task("any", "", [1], 1, None, 1), plan)
    assert found.others_cpus == expected
    assert len(others) - len(waiting) == n_runs


class Counter:
    """Says that the token after the newest one is one more; remembers what it was fed."""

    def __init__(self) -> None:
        self.fed: list[int] = []

    def prefill(self, ids: list[int]) -> np.ndarray:
        self.fed = []
        return self.step(ids[-1])

    def step(self, token: int) -> np.ndarray:
        self.fed.append(token)
        return np.eye(10, dtype=np.float32)[(token + 1) % 10]


@pytest.mark.parametrize(
    ("forced", "fed", "tokens"),
    [(None, [2, 3, 4], [3, 4]), ([7, 1], [2, 7, 1], [3, 8])],
    ids=["greedy", "forced"],
)
def test_forced_tokens_are_fed_and_the_likeliest_reported(
    forced: list[int] | None, fed: list[int], tokens: list[int]
) -> None:
    engine = Counter()
    measurement, logits = measure(engine, Task("any", "", [1, 2], 2, forced, 1))
    assert engine.fed == fed
    assert measurement.tokens == tokens == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engines", "vllm"], "engines must be of"),
        (["--contexts", "128,"], "contexts must be numbers"),
        (["--contexts", "0"], "contexts must be numbers"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: list[str], message: str) -> None:
    code, output = invoke(*options)
    assert code == 2
    assert message in " ".join(output.split())
