"""The benchmarks of kernels from the command line."""

import json
from pathlib import Path

from typer.testing import CliRunner

from mlx_dsv4.cli.app import app


def test_bench_prints_a_table_and_writes_json_lines(tmp_path: Path) -> None:
    lines = tmp_path / "kernels.jsonl"
    done = CliRunner().invoke(app, ["bench", "kernels", "route", "--json", str(lines)])
    assert done.exit_code == 0, done.output
    assert "== route\nroute_scored" in done.output
    _, *records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [r["case"] for r in records] == ["T1", "T32", "T512"]
    assert all(r["kernel"] == "route_scored" and r["us_p50"] > 0 for r in records)
    assert all(r["bytes"] == 1024 * int(r["case"][1:]) and r["read_gb_s"] > 0 for r in records)


def test_bench_of_an_unknown_family_names_those_there_are() -> None:
    done = CliRunner().invoke(app, ["bench", "kernels", "router"])
    assert done.exit_code == 2
    assert "family must be one of attention, compressor" in done.output
