"""``mlx-dsv4 bench sessions``: every line, every record; what its clocks make of known times."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mlx_dsv4.bench import sessions
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.cli.bench import app
from mlx_dsv4.engine import Serving
from mlx_dsv4.errors import PlanError
from tiny_models import tiny_model

ROWS = {
    **{("decode", f"{n} sessions"): {"tokens_per_s", "ratio", "step_us_p50"} for n in (2, 4, 8)},
    ("decode", "1 session"): {"tokens_per_s", "ratio", "step_us_p50"},
    ("decoder", "alone"): {"tokens_per_s", "longest_gap_us", "gap_us_p50"},
    ("decoder", "beside 300 tokens"): {"tokens_per_s", "longest_gap_us", "gap_us_p50"},
    ("prefill", "300 tokens beside a decoder"): {"tokens_per_s", "seconds"},
    ("bound", "while sessions decode"): {"slice_tokens", "decode_quantum"},
}


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "DECODED_TOKENS", 8)
    monkeypatch.setattr(sessions, "LONG_TOKENS", 300)
    monkeypatch.setattr(sessions, "CONTEXT", 1000)


@pytest.mark.parametrize("given", [True, False], ids=["a given model", "its own model"])
def test_every_measurement_has_a_line_and_a_record(tmp_path: Path, given: bool) -> None:
    figures = tmp_path / "figures.jsonl"
    options = ["--model", str(tiny_model().path)] if given else []
    done = CliRunner().invoke(app, ["sessions", "--json", str(figures), *options])
    assert done.exit_code == 0, done.output
    records = {
        (r["measurement"], r["case"]): r for r in map(json.loads, figures.read_text().splitlines())
    }
    assert records.pop(("machine", "ceilings"))["read_gb_s"] > 0
    assert records.keys() == ROWS.keys()
    for (name, case), columns in ROWS.items():
        assert f"{name:<20} {case:<28} " in done.stdout
        assert all(records[name, case][column] > 0 for column in columns)
    assert records["decode", "1 session"]["ratio"] == 1
    bound = records["bound", "while sessions decode"]
    assert (bound["slice_tokens"], bound["decode_quantum"]) == (128, 4)
    assert Serving().slice_tokens == 128
    assert "at most 128 prompt tokens in a step, then 4 steps without\n" in done.stdout


def test_a_model_of_a_smaller_context_reads_a_prompt_that_fits(tmp_path: Path) -> None:
    figures = tmp_path / "figures.jsonl"
    model = tiny_model(context=256).path
    done = CliRunner().invoke(app, ["sessions", "--model", str(model), "--json", str(figures)])
    assert done.exit_code == 0, done.output
    cases = {json.loads(line)["case"] for line in figures.read_text().splitlines()}
    assert {"beside 256 tokens", "256 tokens beside a decoder"} < cases
    assert "beside 256 tokens" in done.stdout


def test_a_context_that_is_too_small_to_measure_is_refused() -> None:
    model = tiny_model(context=47).path
    done = CliRunner().invoke(app, ["sessions", "--model", str(model)])
    assert isinstance(done.exception, PlanError)
    assert str(done.exception) == (
        f"{model}: the model's context must be at least 48 tokens to be measured; got 47"
    )


def test_rates_and_gaps_are_those_of_the_clock() -> None:
    clock = sessions.Clock(seconds=[0.0, 1.0, 1.5, 3.5, 9.0])
    within = clock.within(1.0, 3.5)
    assert within == [1.0, 1.5, 3.5]
    assert sessions.rate(within) == 2 / 2.5
    assert sessions.gaps_us(within) == [0.5e6, 2e6]


def test_a_model_must_be_there() -> None:
    assert CliRunner().invoke(app, ["sessions", "--model", "no.gguf"]).exit_code == 2


def test_figures_are_printed_as_they_are_worded(capsys: pytest.CaptureFixture[str]) -> None:
    Report().figures("decode", "2 sessions", "5 tokens/s", {"tokens_per_s": 5})
    assert capsys.readouterr().out == f"decode               {'2 sessions':<28} 5 tokens/s\n"
