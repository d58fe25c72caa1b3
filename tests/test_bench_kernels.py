"""``mlx-dsv4 bench kernels``: every family has lines, and compares like with like."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from typer.testing import CliRunner

from mlx_dsv4 import ops, reference
from mlx_dsv4.bench import FAMILIES, composed, machine
from mlx_dsv4.cli.bench import app
from mlx_dsv4.gguf.random_rows import random_rows

EPS = 1e-6
# What costs the most in each.
SMALL: dict[str, dict[str, Any]] = {
    "attention": {"HEADS": 8, "K": 64, "CONTEXT": 1024},
    "experts": {"EXPERTS": 8, "DIM": 256, "HIDDEN": 256},
    "matmul": {"N_ROWS": 64, "K": 256, "WEIGHT_BYTES": 2**18},
    "indexer": {"HEADS": 8, "K": 64},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_measured(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(f"mlx_dsv4.bench.{family}")
    monkeypatch.setattr(
        module, "time_us", lambda call, **_: machine.time_us(call, repeats=1, warmup=0)
    )
    monkeypatch.setattr(machine, "READ_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "COPIED_BYTES", 1 << 20)
    for name, value in SMALL.get(family, {}).items():
        monkeypatch.setattr(module, name, value)
    figures = tmp_path / "figures.jsonl"
    done = CliRunner().invoke(app, ["kernels", family, "--json", str(figures)])
    assert done.exit_code == 0, done.output
    first, *records = [json.loads(line) for line in figures.read_text().splitlines()]
    assert {"read_gb_s", "copy_gb_s", "float32_gflop_s", "bfloat16_gflop_s", "eval_us"} <= set(
        first
    )
    assert len({(record["kernel"], record["case"]) for record in records}) == len(records) > 1
    assert all(record["us_p50"] > 0 and record["bytes"] > 0 for record in records)
    for record in records:
        memory = record["bytes"] / record["us_p50"] / 1e3 / record["read_gb_s"]
        sums = record["flops"] / record["us_p50"] / 1e3 / record.get("peak_gflop_s", np.inf)
        assert record["ceiling_share"] == pytest.approx(max(memory, sums), rel=0.02, abs=1e-3)
        assert record["evals"] == pytest.approx(record["us_p50"] / machine.eval_us(), rel=0.02)


@pytest.fixture
def noise() -> Callable[..., mx.array]:
    rng = np.random.default_rng(3)
    return lambda *shape: mx.array(rng.normal(size=shape).astype(np.float32))


def test_composed_attention_is_attention(noise: Callable[..., mx.array]) -> None:
    q, kv, sinks = noise(1, 4, 64), noise(20, 64), noise(4)
    rows = np.array([3, 5, 11], np.int32)
    logits = np.array(q)[0] @ np.array(kv)[rows].T / 8
    weights = np.exp(logits) / (np.exp(logits).sum(1) + np.exp(np.array(sinks)))[:, None]
    expected = weights @ np.array(kv)[rows]
    out = composed.attention(q, kv, sinks, mx.array(rows))
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_composed_selection_is_the_indexer(noise: Callable[..., mx.array]) -> None:
    q, w, rows = noise(1, 4, 128), noise(1, 4), noise(50, 128).astype(mx.bfloat16)
    q = q.astype(mx.bfloat16)
    ours = ops.indexer_select(q, w, rows, start=199, ratio=4, scale=1.0, k=8)
    theirs = composed.indexer_select(q.astype(mx.float32), w, rows.astype(mx.float32), 8)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("ratio", "c"), [(4, 2), (128, 1)])
def test_composed_spans_are_the_compressor(
    ratio: int, c: int, noise: Callable[..., mx.array]
) -> None:
    n, dim = 3 * ratio, 128
    value, gate, ape = noise(n, c * dim), noise(n, c * dim), noise(ratio, c * dim)
    norm, rotation = noise(dim), noise(3, 32, 2)
    state = reference.empty_state(ratio, c * dim, dim)
    _, _, expected = reference.compressor_append(
        *(np.array(a) for a in (value, gate, ape, norm, rotation)), *state, np.zeros((3, dim)),
        start=0, ratio=ratio, first_row=0, eps=EPS, round_trip="none", dtype="float32",
    )  # fmt: skip
    values = value.reshape(3, ratio, -1)
    scores = gate.reshape(3, ratio, -1) + ape
    if c == 2:
        # The items before the first span have no weight.
        values, scores = composed.overlapped(values), composed.overlapped(scores)
        scores[0, :ratio] = -mx.inf
    rows = composed.close_spans(values, scores, norm, rotation, EPS)
    np.testing.assert_allclose(rows, expected, rtol=2e-4, atol=2e-5)


def test_composed_hyper_connections_are_the_kernels(noise: Callable[..., mx.array]) -> None:
    streams, fn, y = noise(3, 4, 64), noise(24, 256) / 16, noise(3, 64)
    base, scale, norm = noise(24), noise(3), noise(64)
    eps = {"norm_eps": EPS, "hyper_eps": EPS}
    ours = ops.hyper_pre(streams, fn, base, scale, norm, iterations=20, **eps)
    theirs = composed.hyper_pre(streams, fn, base, scale, norm, iterations=20, **eps)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    _, post, comb = ours
    expected = ops.hyper_post(streams, y, post, comb)
    np.testing.assert_allclose(
        composed.hyper_post(streams, y, post, comb), expected, rtol=1e-4, atol=1e-5
    )


def test_composed_experts_are_the_kernel(noise: Callable[..., mx.array]) -> None:
    x, ids = noise(2, 64), mx.array([[0, 3], [2, 1]], mx.int32)
    weights = mx.array([[0.7, 0.8], [0.2, 1.3]])
    matrices = [mx.array(random_rows((4, 64, 64), "mxfp4", std=1.0)) for _ in range(3)]
    ours = ops.experts(x, ids, weights, *matrices, formats=("mxfp4",) * 3, clamp=10.0)
    words = [composed.from_mxfp4_blocks(matrix) for matrix in matrices]
    theirs = composed.experts(x, ids, weights, *words, clamp=10.0)
    np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=1e-3)
