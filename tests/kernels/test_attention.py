"""Attention kernels against their reference."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, same_bits, shifted, strided, to_numpy
from attention_cases import (
    Case,
    expected_output,
    make_inputs,
    output_bound,
    rotation_at,
)
from mlx_dsv4 import ops, reference

REALISTIC = pytest.mark.realistic
CASES = [
    Case(1, 64, 512, 250, 4, k=40, dtype=mx.bfloat16),  # V4-Flash, few rows
    pytest.param(Case(1, 64, 512, 2500, 4, k=512, dtype=mx.bfloat16), marks=REALISTIC),
    pytest.param(Case(2, 64, 512, 300, 128), marks=REALISTIC),  # V4-Flash, ratio 128
    Case(3, 8, 192, 130, 4, k=16, dtype=mx.bfloat16),  # the tiny model
    Case(3, 8, 192, 130, 4, k=16),
    Case(1, 8, 192, 0, 0),  # a query alone with itself
    Case(5, 20, 48, 2, 4, window=8, rope_dim=16),  # part panels of heads, rows and dims
    Case(40, 33, 32, 61, 16, window=8, rope_dim=8, dtype=mx.bfloat16),  # idle simdgroups
    Case(2, 70, 16, 37, 4, k=7, window=8, rope_dim=8),  # more heads than a threadgroup has
    Case(16, 70, 16, 37, 4, k=7, window=8, rope_dim=8),
    Case(16, 3, 272, 7, 4, window=8, rope_dim=6),  # half of a simdgroup's dims, half a vector
    Case(2, 9, 512, 37, 4, k=7, window=8),
    *(  # the models' dims where one kernel does the whole, and a head is alone in its panel
        Case(17, 9, dim, 37, 4, k=7, window=8, dtype=dtype)
        for dim in (512, 192)
        for dtype in (mx.bfloat16, mx.float32)
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_matches_reference(case: Case, executor: str) -> None:
    inputs = make_inputs(case)
    out = ops.attention(**inputs)
    mx.eval(out)
    assert out.dtype == case.dtype
    expected = expected_output(inputs)
    assert (np.abs(to_numpy(out) - expected) <= output_bound(inputs, expected)).all()


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("heads", "dim"), [(64, 512), (8, 192), (3, 80)])
def test_queries_match_reference(heads: int, dim: int, dtype: mx.Dtype, executor: str) -> None:
    q = np.random.default_rng(1).standard_normal((4, heads * dim)).astype(np.float32)
    rotation = rotation_at(np.array([0, 1, 127, 70_000]), 64)
    out = ops.attention_queries(mx.array(q), rotation, heads=heads, eps=1e-6, dtype=dtype)
    mx.eval(out)
    assert out.dtype == dtype
    exact = reference.attention_queries(
        q, to_numpy(rotation), heads=heads, eps=1e-6, dtype="float32"
    )
    # The norm: D / 16 + 4 sums of squares, halved by the root, and 4 roundings; rotation: 4.
    half_unit = 2.0**-8 if dtype == mx.bfloat16 else EPS
    bound = (dim / 32 + 10) * EPS * np.abs(exact).max() + half_unit * np.abs(exact)
    assert (np.abs(to_numpy(out) - exact) <= bound).all()


def nan_tokens(out: mx.array) -> list[int]:
    return np.flatnonzero(np.isnan(to_numpy(out)).any((1, 2))).tolist()


@pytest.mark.parametrize("ratio", [4, 16])
def test_a_query_sees_exactly_the_rows_it_or_earlier_tokens_closed(
    ratio: int, executor: str
) -> None:
    case = Case(40, 2, 16, 0, ratio, window=8, rope_dim=8)
    inputs = make_inputs(case)
    for row in range(case.n_rows):
        kv = mx.array(inputs["attention_kv"])
        kv[case.window + row] = mx.nan
        seen_by = nan_tokens(ops.attention(**(inputs | {"attention_kv": kv})))
        assert seen_by == [p for p in range(40) if row < (p + 1) // ratio]


@pytest.mark.parametrize("window", [8, pytest.param(128, marks=REALISTIC)])
def test_a_query_sees_exactly_the_window_rows(window: int, executor: str) -> None:
    case = Case(200, 2, 16, 0, 0, window=window, rope_dim=8)
    inputs = make_inputs(case)
    for pos in (0, 1, 71, 199):
        rows = mx.array(inputs["rows"])
        rows[pos] = mx.nan
        seen_by = nan_tokens(ops.attention(**(inputs | {"rows": rows})))
        assert seen_by == list(range(pos, min(200, pos + window)))


def test_a_query_sees_exactly_the_ring_rows_before_the_chunk(executor: str) -> None:
    case = Case(12, 2, 16, 21, 0, window=8, rope_dim=8)
    inputs = make_inputs(case)
    for pos in range(14, 21):
        kv = mx.array(inputs["attention_kv"])
        kv[pos % 8] = mx.nan
        seen_by = nan_tokens(ops.attention(**(inputs | {"attention_kv": kv})))
        assert seen_by == [t for t in range(12) if 21 + t - 8 < pos]


def test_listing_every_visible_row_is_the_same_as_no_list(executor: str) -> None:
    inputs = make_inputs(Case(1, 8, 192, 130, 4))
    listed = mx.array([[*range(32), -1, -1]], dtype=mx.int32)
    assert same_bits(ops.attention(**inputs), ops.attention(**(inputs | {"selected": listed})))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("n_tokens", [2, 16])
def test_no_selected_row_leaves_the_window(n_tokens: int, dtype: mx.Dtype, executor: str) -> None:
    inputs = make_inputs(Case(n_tokens, 3, 16, 20, 4, window=8, rope_dim=8, dtype=dtype))
    without = ops.attention(**(inputs | {"ratio": 0}))
    selected = np.full((n_tokens, 70), -1, np.int32)
    assert same_bits(without, ops.attention(**(inputs | {"selected": mx.array(selected)})))
    selected[:, -1] = 0  # behind tiles that name no row
    last = ops.attention(**(inputs | {"selected": mx.array(selected)}))
    expected = expected_output(inputs, selected=selected)
    assert (np.abs(to_numpy(last) - expected) <= output_bound(inputs, expected)).all()


def test_large_logits_and_sinks_stay_finite(executor: str) -> None:
    inputs = make_inputs(Case(2, 4, 16, 130, 4, rope_dim=8))
    inputs["q"] = 1e4 * inputs["q"]
    for sink in (-np.inf, -1e30, 1e5):
        inputs["sinks"] = mx.full((4,), sink)
        out = to_numpy(ops.attention(**inputs))
        assert np.isfinite(out).all()
        if sink == 1e5:
            assert (out == 0).all()


def sink_value_output(inputs: dict[str, Any]) -> np.ndarray:
    """What comes out if the sink adds its share of the query's own row as a value."""
    without = expected_output(inputs, sinks=mx.full(inputs["sinks"].shape, -np.inf))
    right = expected_output(inputs)
    share = 1 - np.linalg.norm(right, axis=-1) / np.linalg.norm(without, axis=-1)
    return right + share[..., None] * to_numpy(inputs["rows"])[:, None]


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bf16", "f32"])
def test_wrong_rules_disagree(dtype: mx.Dtype, executor: str) -> None:
    inputs = make_inputs(Case(3, 8, 192, 130, 4, dtype=dtype))
    out = to_numpy(ops.attention(**inputs))
    right = expected_output(inputs)
    bound = output_bound(inputs, right)
    one_row_less = mx.array([[*range(32), -1], [*range(31), -1, -1], [*range(32), -1]], mx.int32)
    identity = rotation_at(np.zeros(3), 64)
    wrong = {
        "output not rotated back": expected_output(inputs, rotation=identity),
        "sink has a value": sink_value_output(inputs),
        "sinks are zero": expected_output(inputs, sinks=mx.zeros(8)),
        "a closed row is hidden": expected_output(inputs, selected=one_row_less),
    }
    assert (np.abs(out - right) <= bound).all()
    for rule, output in wrong.items():
        assert (np.abs(out - output) > 4 * bound).any(), rule


@pytest.mark.parametrize("change", [strided, shifted])
@pytest.mark.parametrize("n_tokens", [3, 16])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bf16", "f32"])
def test_inputs_may_be_strided_and_begin_anywhere(
    dtype: mx.Dtype, n_tokens: int, change: Callable[[mx.array], mx.array], executor: str
) -> None:
    inputs = make_inputs(Case(n_tokens, 3, 16, 37, 4, k=5, window=8, rope_dim=8, dtype=dtype))
    views = {
        name: change(value) if isinstance(value, mx.array) else value
        for name, value in inputs.items()
    }
    mx.eval([view for view in views.values() if isinstance(view, mx.array)])
    assert same_bits(ops.attention(**inputs), ops.attention(**views))


def test_no_tokens_give_no_rows(executor: str) -> None:
    inputs = make_inputs(Case(1, 4, 16, 130, 4, k=4, rope_dim=8))
    for name in ("q", "rows", "rotation", "selected"):
        inputs[name] = inputs[name][:0]
    out = ops.attention(**inputs)
    mx.eval(out)
    assert out.shape == (0, 4, 16)


def test_reference_on_numbers_worked_by_hand() -> None:
    # Both logits are 0, the sink ln 2: weights 1/4, 1/4 and 1/2 for the sink.
    out = reference.attention(
        np.zeros((1, 1, 2)),
        np.array([[4.0, 0.0]]),
        np.array([[0.0, 8.0], [np.nan, np.nan]]),
        np.array([np.log(2)]),
        np.array([[[1.0, 0.0]]]),
        selected=None,
        start=1,
        window=2,
        ratio=0,
        dtype="float32",
    )
    np.testing.assert_allclose(out, [[[1.0, 2.0]]], rtol=1e-6)


def select_a_row(n_tokens: int, row: int) -> tuple[mx.array, mx.array]:
    """Attention that selects no row, and where the last token selects one more."""
    inputs = make_inputs(Case(n_tokens, 8, 16, 132 - n_tokens, 4, rope_dim=8))
    inputs["attention_kv"] = mx.nan_to_num(inputs["attention_kv"])  # rows 33 to 37 are numbers
    selected = np.full((n_tokens, 2), -1, np.int32)
    none = ops.attention(**(inputs | {"selected": mx.array(selected)}))
    mx.eval(none)
    selected[-1, 1] = row
    return none, ops.attention(**(inputs | {"selected": mx.array(selected)}))


@pytest.mark.parametrize("row", [-2, 33, 10**6, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("n_tokens", [2, 17])
def test_a_selected_row_that_is_not_visible_gives_nan(
    n_tokens: int, row: int, executor: str
) -> None:
    good, out = select_a_row(n_tokens, row)
    assert np.isnan(to_numpy(out[-1])).all()
    assert same_bits(out[:-1], good[:-1])


def test_more_dims_than_a_gpu_kernel_sums_are_refused(simulator: str) -> None:
    inputs = make_inputs(Case(1, 1, 528, 1, 0, window=2, rope_dim=8))
    out = ops.attention(**inputs)
    message = r"\[attention\] D must be at most 512 on the GPU; got 528"
    with pytest.raises(RuntimeError, match=message):
        mx.eval(out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": mx.zeros((1, 4, 8))}, r"\[attention\] q must be \[T, H, D\] with D a multiple of"),
        ({"q": mx.zeros((1, 4, 16), mx.float16)}, r"q must be bfloat16 or float32; got float16"),
        ({"rows": mx.zeros((1, 16), mx.bfloat16)}, r"rows must be float32; got bfloat16"),
        ({"rows": mx.zeros((2, 16))}, r"rows must be \[T, D\] = \(1,16\); got \(2,16\)"),
        ({"attention_kv": mx.zeros((10, 16))}, r"every visible row, 11 rows; got \(10,16\)"),
        ({"attention_kv": mx.zeros((11, 32))}, r"attention_kv must be \[rows, D\] with D = 16"),
        ({"sinks": mx.zeros(3)}, r"sinks must be \[H\] = \(4\); got \(3\)"),
        ({"sinks": mx.zeros(4, mx.bfloat16)}, r"sinks must be float32; got bfloat16"),
        ({"rotation": mx.zeros((2, 4, 2))}, r"rotation must be \[n, R/2, 2\] with n = 1"),
        ({"rotation": mx.zeros((1, 9, 2))}, r"and R <= 16; got \(1,9,2\)"),
        ({"selected": mx.zeros((1, 2))}, r"selected must be int32; got float32"),
        ({"selected": mx.zeros((2, 2), mx.int32)}, r"selected must be \[T, K\] with T = 1"),
        ({"selected": mx.zeros((1, 0), mx.int32)}, r"K >= 1; got \(1,0\)"),
        (
            {"selected": mx.zeros((1, 2), mx.int32), "ratio": 0},
            r"selected must be None at ratio 0; got \(1,2\)",
        ),
        ({"start": -1}, r"start must be in 0\.\.2147483646 for 1 tokens; got -1"),
        ({"start": 2**31}, r"start must be in 0\.\.2147483646 for 1 tokens; got 2147483648"),
        ({"window": 0}, r"window must be >= 1; got 0"),
        ({"ratio": -1}, r"ratio must be >= 0; got -1"),
    ],
)
def test_bad_arguments_name_the_argument(change: dict, message: str) -> None:
    good = {
        "q": mx.zeros((1, 4, 16)),
        "rows": mx.zeros((1, 16)),
        "attention_kv": mx.zeros((11, 16)),
        "sinks": mx.zeros(4),
        "rotation": mx.zeros((1, 4, 2)),
        "selected": None,
        "start": 11,
        "window": 8,
        "ratio": 4,
    }
    with pytest.raises(ValueError, match=message):
        ops.attention(**(good | change))


def test_bad_queries_name_the_argument() -> None:
    good = {"heads": 2, "eps": 1e-6, "dtype": mx.float32}
    for q, change, message in (
        (mx.zeros((1, 40)), {}, r"q must be \[T, H \* D\] with H = 2 and D a multiple of 16"),
        (mx.zeros((1, 32), mx.bfloat16), {}, r"q must be float32; got bfloat16"),
        (mx.zeros((1, 32)), {"dtype": mx.float16}, r"dtype must be bfloat16 or float32"),
        (mx.zeros((1, 32)), {"heads": 0}, r"heads must be >= 1; got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.attention_queries(q, mx.zeros((1, 8, 2)), **(good | change))
