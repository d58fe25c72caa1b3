"""``mlx-dsv4 bench decode --profile``: every kernel of a step has a line; graphs are counted."""

import json
import time
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from typer.testing import CliRunner

from mlx_dsv4 import ops
from mlx_dsv4.bench import profile
from mlx_dsv4.bench.walk import Subject, likeliest, read, stepper
from mlx_dsv4.cli.bench import app
from tiny_models import tiny_model

# Layers of ratio 0, 4 and 128, the first routed by hash; more rows than the indexer selects.
CONTEXT = 300
CALLS = {
    "embed": 1, "hyper_pre": 6, "hyper_post": 6, "hyper_head": 1, "attention_queries": 3,
    "window_rows": 3, "window_write": 3, "attention": 3, "compressor_append": 3,
    "indexer_queries": 1, "indexer_select": 1, "route_hashed": 1, "route_scored": 2, "experts": 6,
}  # fmt: skip


def test_every_kernel_has_a_line(tmp_path: Path) -> None:
    figures = tmp_path / "figures.jsonl"
    path = tiny_model(ratios=(0, 4, 128), hash_layers=1, top_k=16).path
    options = ["--profile", "--tokens", "2", "--model", str(path), "--json", str(figures)]
    done = CliRunner().invoke(app, ["decode", str(CONTEXT), *options])
    assert done.exit_code == 0, done.output
    _, step, *records = [json.loads(line) for line in figures.read_text().splitlines()]
    kernels = [r for r in records if "share" in r]
    calls = {record["measurement"]: record["calls"] for record in kernels}
    assert {name: calls[name] for name in CALLS} == CALLS
    assert calls.keys() - CALLS.keys() == {"matmul", "MLX's ops between"}
    assert sum(record["share"] for record in kernels) == pytest.approx(1, abs=0.01)
    kinds = step["kinds"]
    assert {name: kinds[name] for name in CALLS} == CALLS
    assert kinds["matmul"] == calls["matmul"]
    assert step["nodes"] == sum(kinds.values())
    assert 0 < step["python_us"] < step["us_p50"]


def test_what_a_step_costs_in_nodes() -> None:
    """A layer is some forty nodes: a kernel for each part of a sublayer, and MLX's RMS norm."""
    subject = Subject.load(tiny_model(ratios=(0, 4, 128), hash_layers=1, top_k=16).path, "official")
    cache = subject.model.make_cache(CONTEXT + 10)
    state, _ = read(subject.model, subject.prompt(CONTEXT), cache)
    step = stepper(subject.model, likeliest(subject.model, state), cache)
    mx.eval(step())
    with profile.only_recorded():
        nodes = profile.graph_nodes(step())
    assert nodes.total() <= 3 * 45


def test_a_profile_changes_no_token() -> None:
    subject = Subject.load(tiny_model(ratios=(0, 4, 128), hash_layers=1, top_k=16).path, "official")
    tokens = []
    for watched in (False, True):
        cache = subject.model.make_cache(CONTEXT + 10)
        state, _ = read(subject.model, subject.prompt(CONTEXT), cache)
        step = stepper(subject.model, likeliest(subject.model, state), cache)
        if watched:
            with profile.timed_kernels():
                tokens.append([step().item() for _ in range(8)])
        else:
            tokens.append([step().item() for _ in range(8)])
    assert tokens[0] == tokens[1]


def test_a_kernel_is_not_charged_for_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 1.25])  # begun, inputs there, result there
    kv, norm, rotation = mx.ones((1, 64)), mx.ones(64), mx.zeros((1, 8, 2))
    with profile.timed_kernels() as times:
        monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
        ops.window_rows(kv, norm, rotation, eps=1e-6, round_trip="none", dtype=mx.float32)
    assert (times.kernel_us, times.between_us) == ({"window_rows": 250_000}, 1e6)


def test_nodes_of_a_graph_are_counted_by_kind() -> None:
    a = mx.array(np.ones(3, np.float32))
    b = a * a
    assert profile.graph_nodes(mx.exp(b) + b) == {"Multiply": 1, "Exp": 1, "Add": 1}
