"""``mlx-dsv4 bench decode`` and ``prefill``: lines, records, the table, and what they count."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mlx_dsv4 import DEMO_MODEL
from mlx_dsv4.bench import walk
from mlx_dsv4.bench.work import Work, row_work, weight_work
from mlx_dsv4.cli.bench import app
from mlx_dsv4.errors import PlanError
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.gguf.tiny import Formats, tiny_config
from tiny_models import tiny_model

PACKED = Formats("q8_0", "mxfp4", "q8_0", "q8_0")


def invoke(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_decode_has_two_lines_and_a_row_for_each_context(tmp_path: Path) -> None:
    figures, table = tmp_path / "figures.jsonl", tmp_path / "table.csv"
    path = tiny_model(ratios=(0, 4, 128), hash_layers=1).path
    options = ["--model", path, "--tokens", "3", "--json", figures, "--csv", table]
    output = invoke("decode", "7", "140", *options)
    machine, *records = [json.loads(line) for line in figures.read_text().splitlines()]
    assert machine["read_gb_s"] > 0
    cases = ["pp7", "tg3 @ d7", "pp133 @ d7", "tg3 @ d140"]
    assert [record["case"] for record in records] == cases
    assert all(case in output for case in cases)
    columns, *rows = [line.split(",") for line in table.read_text().splitlines()]
    assert ",".join(columns) == (
        "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes"
    )
    assert [(row[0], row[1], row[3]) for row in rows] == [("7", "7", "3"), ("140", "133", "3")]
    for row, read, decoded in zip(rows, records[::2], records[1::2], strict=True):
        assert float(row[2]) == read["tokens_per_s"]
        assert float(row[4]) == decoded["tokens_per_s"]
        assert int(row[5]) == decoded["kvcache_bytes"]


def test_prefill_has_a_line_for_each_length(tmp_path: Path) -> None:
    figures = tmp_path / "figures.jsonl"
    invoke("prefill", "5", "130", "--depth", "9", "--repeats", "1", "--json", figures)
    _, *records = [json.loads(line) for line in figures.read_text().splitlines()]
    assert [record["case"] for record in records] == ["pp5 @ d9", "pp130 @ d9"]
    assert all(record["tokens_per_s"] > 0 and record["flops"] > 0 for record in records)


def test_contexts_that_do_not_grow_are_refused() -> None:
    done = CliRunner().invoke(app, ["decode", "20", "10"])
    assert done.exit_code == 2
    assert "contexts must grow; got 20 10" in done.output


def test_default_contexts_end_where_the_model_does() -> None:
    subject = walk.Subject.load(DEMO_MODEL, "official")
    assert subject.default_contexts(64) == [128, 512, 2048, 8192 - 64]
    assert subject.default_contexts(8000) == [128, 192]
    subject.check_room(8128, 64)


@pytest.mark.parametrize("arguments", [
    ["decode", "7", "8189", "--tokens", "4"], ["decode", "7", str(10**24)],
    ["prefill", "3", "4", "--depth", "8189"], ["prefill", str(10**15)],
])  # fmt: skip
def test_what_the_context_cannot_hold_leaves_earlier_figures(
    arguments: list[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures"
    figures.write_text("earlier")
    option = "--csv" if arguments[0] == "decode" else "--json"
    done = CliRunner().invoke(app, [*arguments, option, str(figures)])
    assert isinstance(done.exception, PlanError)
    assert "at most the model's 8192 tokens; got " in str(done.exception)
    assert figures.read_text() == "earlier"


def test_each_context_is_read_as_if_nothing_had_been_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = walk.Subject.load(tiny_model(ratios=(0, 4, 128), hash_layers=1).path, "official")
    model, seen = subject.model, []

    def decode_us(model_: object, state: object, cache: object, n: int) -> list[float]:
        seen.append(np.array(state))
        return walk_decode(model, state, cache, n)

    walk_decode = walk.decode_us
    monkeypatch.setattr(walk, "decode_us", decode_us)
    frontiers = list(walk.walk(subject, [6, 131, 300], 9))
    for frontier, state in zip(frontiers, seen, strict=True):
        whole = model.prefill(subject.prompt(300)[: frontier.context], model.make_cache(400))
        np.testing.assert_array_equal(state, np.array(whole[-1:]))


def test_rows_that_a_token_reads() -> None:
    config = tiny_config(
        ratios=(0, 4, 128), hash_layers=1, head_dim=192, heads=8, top_k=16,
        indexer_dim=128, indexer_heads=16,
    )  # fmt: skip
    # After 999 tokens: 128 of the window each; 250 spans of 4, 16 of them selected; 7 of 128.
    rows = 128 + (128 + 16) + (128 + 7)
    expected = Work(2 * (192 * rows + 128 * 250), 4 * 8 * 192 * rows + 2 * 16 * 128 * 250)
    assert row_work(config, 999) == expected
    # The fourth token closes the first span.
    assert row_work(config, 3).n_bytes == 2 * (192 * (4 + 5 + 4) + 128)


def test_weights_that_a_token_meets() -> None:
    tiny = tiny_model(formats=PACKED)
    config = tiny.config
    with GGUFFile(tiny.path) as file:
        work = weight_work(config, file.tensors)
        sizes = {name: info.n_bytes for name, info in file.tensors.items()}
        elements = {name: info.n_elements for name, info in file.tensors.items()}
    banks = {name for name in sizes if name.endswith("_exps.weight")}
    rows = {"token_embd.weight"} | {name for name in sizes if "tid2eid" in name}
    others = sizes.keys() - banks - rows
    n_bytes = sum(sizes[name] for name in others)
    n_bytes += sum(sizes[name] // config.vocab for name in rows)
    n_bytes += sum(sizes[name] * 2 // 8 for name in banks)
    assert work.n_bytes == n_bytes
    products = sum(2 * elements[name] * 2 // 8 for name in banks)
    products += sum(2 * elements[name] for name in others if elements[name] > 4000)
    assert work.n_flops == pytest.approx(products, rel=0.01)
