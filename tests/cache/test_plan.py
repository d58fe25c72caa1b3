"""Cache planning: V4-Flash's published figures, and steps and spans worked by hand."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_dsv4.cache import grown_capacity, plan_cache, plan_span
from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.errors import CacheStateError, PlanError

FIXED_BYTES = 17_842_176
BYTES_PER_TOKEN = 6_880


@pytest.mark.parametrize(
    ("capacity_tokens", "n_bytes"), [(131_072, 919_617_536), (1_048_576, 7_232_045_056)]
)
def test_v4_flash_bytes(capacity_tokens: int, n_bytes: int) -> None:
    plan = plan_cache(V4_FLASH, capacity_tokens)
    assert plan.n_bytes == n_bytes == FIXED_BYTES + BYTES_PER_TOKEN * capacity_tokens


def test_v4_flash_fixed_bytes_are_windows_and_states() -> None:
    plan = plan_cache(V4_FLASH, 131_072)
    windows = sum(layer.window * 512 * 2 for layer in plan.layers)
    states = sum(b.n_bytes for layer in plan.layers for b in layer.buffers if b.dtype == "float32")
    assert (windows, states) == (5_636_096, 12_206_080)


def test_buffers_of_each_kind_of_layer() -> None:
    layers = plan_cache(V4_FLASH, 1024).layers
    shapes = [{b.name: b.shape for b in layers[i].buffers} for i in (0, 2, 3)]
    assert shapes[0] == {"attention_kv": (128, 512)}
    assert shapes[1] == {
        "attention_kv": (128 + 256, 512),
        "compressor_value": (8, 1024),
        "compressor_score": (8, 1024),
        "indexer_kv": (256, 128),
        "indexer_value": (8, 256),
        "indexer_score": (8, 256),
    }
    assert shapes[2] == {
        "attention_kv": (128 + 8, 512),
        "compressor_value": (128, 512),
        "compressor_score": (128, 512),
    }


def test_a_short_context_has_a_short_window() -> None:
    layers = plan_cache(V4_FLASH, 7).layers
    assert [layers[i].buffers[0].shape[0] for i in (0, 2, 3)] == [7, 8, 7]


def test_float32_rows_cost_twice_the_row_bytes() -> None:
    bf16, f32 = (plan_cache(V4_FLASH, 4096, row_dtype=d) for d in ("bfloat16", "float32"))
    states = 12_206_080
    assert f32.n_bytes - states == 2 * (bf16.n_bytes - states)


@pytest.mark.parametrize(
    ("change", "capacity_tokens", "message"),
    [
        ({}, 0, "context must be at least 1 token; got 0"),
        ({}, 1_048_577, "at most the model's 1048576 tokens; got 1048577"),
        ({"window": 64}, 1024, "sliding window must be 128 rows; got 64"),
        ({"context": 2**45}, 2**45, r"needs \d+ bytes; at most 281474976710656"),
    ],
)
def test_impossible_plans_are_refused(change: dict, capacity_tokens: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_cache(dataclasses.replace(V4_FLASH, **change), capacity_tokens)


def test_unknown_row_dtype_is_refused() -> None:
    with pytest.raises(PlanError, match="row dtype must be one of bfloat16, float32; got int8"):
        plan_cache(V4_FLASH, 1024, row_dtype="int8")


def span(start: int, n_tokens: int, ratio: int, capacity_tokens: int = 512):
    return plan_span(start, n_tokens, capacity_tokens=capacity_tokens, window=128, ratio=ratio)


def test_a_step_worked_by_hand() -> None:
    step = span(130, 1, 4)
    assert (step.window_slot, step.window_valid, step.window_first_pos) == (2, 128, 3)
    assert step.compressed_count == 0  # 131 tokens: span 32 is open
    assert step.compressed_valid == 32
    closing = span(131, 1, 4)
    assert (closing.compressed_start, closing.compressed_count) == (32, 1)


def test_spans_worked_by_hand() -> None:
    assert span(0, 127, 4).compressed_valid == 31

    two = span(127, 2, 4)
    assert (two.window_slot, two.window_valid) == (127, 128)
    assert (two.compressed_start, two.compressed_count) == (31, 1)
    assert (span(127, 2, 128).compressed_start, span(127, 2, 128).compressed_count) == (0, 1)

    many = span(129, 128, 4)
    assert many.window_slot == 1
    assert (many.compressed_start, many.compressed_count, many.compressed_valid) == (32, 32, 64)
    assert (span(129, 128, 128).compressed_count, span(129, 128, 128).compressed_valid) == (1, 2)


def test_only_the_newest_rows_go_to_the_ring() -> None:
    assert [span(0, n, 4).window_source for n in (1, 127, 128, 129, 300)] == [0, 0, 0, 1, 172]


def test_ratio_zero_has_no_compressed_rows() -> None:
    plan = span(100, 300, 0)
    assert (plan.compressed_start, plan.compressed_count, plan.compressed_valid) == (0, 0, 0)


@given(st.lists(st.integers(0, 2048), min_size=2, max_size=12, unique=True))
def test_calls_in_a_row_close_every_span_once(cuts: list[int]) -> None:
    cuts = [0, *sorted(set(cuts) - {0})]
    for ratio in (4, 128):
        plans = [span(a, b - a, ratio, 2048) for a, b in pairwise(cuts)]
        closed = [p.compressed_start + i for p in plans for i in range(p.compressed_count)]
        assert closed == list(range(cuts[-1] // ratio))


@pytest.mark.parametrize(
    ("start", "n_tokens", "message"),
    [
        (0, 0, "needs at least 1 token at a position >= 0; got 0 at 0"),
        (500, 13, "13 tokens at position 500 reach past the cache's 512 tokens"),
    ],
)
def test_impossible_spans_are_refused(start: int, n_tokens: int, message: str) -> None:
    with pytest.raises(CacheStateError, match=message):
        span(start, n_tokens, 4)


def test_a_snapshot_of_v4_flash_has_one_size_at_any_context() -> None:
    for capacity_tokens in (1, 128, 8192, 131_072, 1_048_576):
        assert plan_cache(V4_FLASH, capacity_tokens).snapshot_bytes == 17_842_176


@pytest.mark.parametrize(
    ("capacity_tokens", "needed_tokens", "grown"),
    [
        (131_072, 98_000 + 8_192 - 1, 131_072),
        (131_072, 131_000 + 8_192 - 1, 262_144),
        (262_144, 510_000 + 32_768 - 1, 524_288),
        (131_072, 131_072, 131_072),
        (131_072, 131_073, 262_144),
        (8_192, 8_193, 131_072),
        (524_288, 600_000, 524_288),
    ],
)
def test_capacity_grows_in_steps(capacity_tokens: int, needed_tokens: int, grown: int) -> None:
    assert grown_capacity(capacity_tokens, needed_tokens, context=524_288) == grown
