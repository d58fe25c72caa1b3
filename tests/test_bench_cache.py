"""``mlx-dsv4 bench cache`` at a few tokens: every line, every record, and what does not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from mlx_dsv4.bench import cache as cache_bench
from mlx_dsv4.bench import ceilings
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.cache import plan_cache
from mlx_dsv4.cli.bench import app
from mlx_dsv4.config import V4_FLASH

TOKENS = 300
ROWS = 2 * (21 * (TOKENS // 4 * (512 + 128)) + 20 * (TOKENS // 128 * 512))  # bytes, bfloat16
SNAPSHOT = plan_cache(V4_FLASH, TOKENS).snapshot_bytes
OPERATIONS = {
    ("snapshot", "300 tokens, each kept"): SNAPSHOT,
    ("snapshot", "300 tokens, each dropped"): SNAPSHOT,
    ("restore", "300 tokens"): SNAPSHOT,
    ("branch", "300 tokens, shares rows"): 0,
    ("branch", "300 tokens, first write"): SNAPSHOT + ROWS,
    ("branch", "300 tokens, takes rows over"): SNAPSHOT,
    ("grow", "300 tokens, to 131072 tokens"): SNAPSHOT + ROWS,
    ("grow", "300 tokens, frees the smaller"): 0,
}
FILES = {"300 tokens": "save"} | {
    f"300 tokens, from {source}": "load" for source in ("page cache", "disk")
}


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_bench, "SNAPSHOT_REPEATS", 2)
    monkeypatch.setattr(cache_bench, "MOST_REPEATS", 2)


def run(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, ["cache", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done


def records_of(path: Path) -> dict[tuple[str, str], dict[str, float]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {(record["operation"], record["case"]): record for record in records}


def test_every_operation_has_a_line_and_a_record(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    done = run(TOKENS, "--json", tmp_path / "figures.jsonl", "--folder", files)
    records = records_of(tmp_path / "figures.jsonl")
    assert done.stdout.startswith("== 300 tokens\n")
    for name, case in records:
        assert f"{name:<20} {case:<28} " in done.stdout
    copies = [r for (name, _), r in records.items() if name in ("fresh copy", "touched copy")]
    assert sorted(r["bytes"] for r in copies) == 2 * [SNAPSHOT] + 2 * [SNAPSHOT + ROWS]
    for key, n_bytes in OPERATIONS.items():
        assert records[key]["bytes"] == n_bytes
        assert records[key]["us_p50"] >= records[key]["us_min"] > 0
    assert records["snapshot", "300 tokens, each kept"].keys() >= {
        "fresh_copy_gb_s",
        "touched_copy_gb_s",
    }
    assert list(files.iterdir()) == []


def test_files_stand_beside_the_disk_and_the_page_cache(tmp_path: Path) -> None:
    run(TOKENS, "--json", tmp_path / "figures.jsonl", "--folder", tmp_path)
    records = records_of(tmp_path / "figures.jsonl")
    for case, name in FILES.items():
        record = records[name, case]
        if "skipped" not in record:
            assert SNAPSHOT + ROWS + 4 * TOKENS <= record["bytes"] < 1.01 * (SNAPSHOT + ROWS)
            assert record["beyond_buffers_bytes"] >= 0
    assert records["save", "300 tokens"]["disk_write_gb_s"] > 0
    assert records["load", "300 tokens, from page cache"]["page_cache_read_gb_s"] > 0
    assert records["load", "300 tokens, from page cache"]["page_cache_to_fresh_gb_s"] > 0


def test_what_does_not_fit_in_memory_is_skipped_with_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cache_bench, "available_bytes", lambda: 300_000_000)
    done = run(TOKENS, V4_FLASH.context, "--json", tmp_path / "figures.jsonl")
    reason = "needs 7.2 GB of memory; 0.3 GB are available"
    assert f"1048576 tokens, full         skipped: {reason}\n" in done.stdout
    assert "skipped: the model's context is 1048576 tokens\n" in done.stdout
    records = records_of(tmp_path / "figures.jsonl")
    assert records["cache", "1048576 tokens, full"]["skipped"] == reason
    assert "skipped" in records["grow", "917504 tokens, to 1048576 tokens"]
    assert "skipped" in records["grow", "300 tokens, to 131072 tokens"]
    assert records["branch", "300 tokens, first write"]["bytes"] == SNAPSHOT + ROWS


def test_what_does_not_fit_on_the_disk_is_skipped_with_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = cache_bench.disk_usage(tmp_path)
    monkeypatch.setattr(cache_bench, "disk_usage", lambda _: usage._replace(free=200_000_000))
    done = run(TOKENS, "--folder", tmp_path)
    assert "skipped: needs 0.0 GB of disk" in done.stdout
    assert "load" not in done.stdout


def test_a_capacity_must_be_one_of_the_model() -> None:
    done = CliRunner().invoke(app, ["cache", "1048577"])
    assert done.exit_code == 2


def test_copies_are_of_all_the_bytes_in_order() -> None:
    sources = [np.arange(n, dtype=np.uint8).reshape(-1, 5) for n in (35, 200, 5)]
    target = ceilings.fresh_memory(240)
    jobs = ceilings.shared_out(target, sources, 3)
    assert len(jobs) == 3
    for job in jobs:
        ceilings.copy_pieces(job)
    assert np.array_equal(target, np.concatenate([s.reshape(-1) for s in sources]))


def test_the_peak_is_what_was_resident_at_once() -> None:
    peak, n_bytes = ceilings.PeakMemory(), 64 << 20
    with peak.watch():
        np.full(n_bytes, 1, np.uint8)
    assert peak.rise < 2 * n_bytes
    if ceilings.STATUS.exists():  # elsewhere the mark may have been higher before
        assert peak.rise > n_bytes - (1 << 20)


def test_a_report_without_a_file_only_prints(capsys: pytest.CaptureFixture[str]) -> None:
    Report()("grow", "some", [2.0, 4.0, 3.0], n_bytes=3000, ceilings={"fresh_copy": 4.0})
    assert capsys.readouterr().out == (
        f"grow                 {'some':<28}        3.0 us    1.00 GB/s "
        "(  25% of fresh copy bandwidth)\n"
    )
