"""Attention kernels against their reference."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, same_bits, strided, to_numpy
from mlx_dsv4 import _ext, ops, reference

SPREAD = 5  # standard deviations that a sum of independent rounding errors may be off


@dataclass(frozen=True)
class Case:
    n_tokens: int
    heads: int
    dim: int
    start: int
    ratio: int
    k: int = 0  # 0 = every visible row
    window: int = 128
    rope_dim: int = 64
    dtype: mx.Dtype = mx.float32

    def __str__(self) -> str:
        name = f"T{self.n_tokens}-H{self.heads}-D{self.dim}-s{self.start}-r{self.ratio}"
        dtype = str(self.dtype).removeprefix("mlx.core.")
        return f"{name}-k{self.k}-W{self.window}-{dtype}"

    @property
    def n_rows(self) -> int:
        return reference.visible_rows(self.start + self.n_tokens - 1, self.ratio or 2**30)


CASES = [
    Case(1, 64, 512, 2500, 4, k=512, dtype=mx.bfloat16),  # V4-Flash, decode
    Case(2, 64, 512, 300, 128),  # V4-Flash, ratio 128
    Case(3, 8, 192, 130, 4, k=16, dtype=mx.bfloat16),  # the tiny model
    Case(3, 8, 192, 130, 4, k=16),
    Case(1, 8, 192, 0, 0),  # a query alone with itself
    Case(5, 20, 48, 2, 4, window=8, rope_dim=16),  # part panels of heads, rows and dims
    Case(40, 33, 16, 61, 16, window=8, rope_dim=8, dtype=mx.bfloat16),
]


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    """Thread counts to compare; puts the usual one back afterwards."""
    usual = _ext.num_threads()
    yield (1, 2)
    _ext.set_num_threads(usual)


def make_selected(case: Case, rng: np.random.Generator) -> np.ndarray:
    """Ascending visible rows with -1 between them."""
    selected = np.full((case.n_tokens, case.k), -1, np.int32)
    for t in range(case.n_tokens):
        visible = (case.start + t + 1) // case.ratio
        chosen = rng.permutation(visible)[: case.k]
        where = np.sort(rng.permutation(case.k)[: chosen.size])
        selected[t, where] = np.sort(chosen)
    return selected


def rotation_at(positions: np.ndarray, rope_dim: int) -> mx.array:
    frequencies = reference.inverse_frequencies(rope_dim, 1e4)
    return mx.array(reference.rotation_table(positions, frequencies))


def make_inputs(case: Case, seed: int = 0) -> dict[str, Any]:
    """Arguments of the op; every row that no query may read is NaN."""
    rng = np.random.default_rng(seed)
    kv = rng.standard_normal((case.window + case.n_rows + 5, case.dim))
    kv[case.window + case.n_rows :] = np.nan
    for slot in range(case.start, case.window):
        kv[slot] = np.nan  # not written yet
    kv[case.start % case.window] = np.nan  # the oldest position, which falls out of the window

    def rows_of(a: np.ndarray) -> mx.array:
        return mx.array(a.astype(np.float32)).astype(case.dtype)

    return {
        "q": rows_of(rng.standard_normal((case.n_tokens, case.heads, case.dim))),
        "rows": rows_of(rng.standard_normal((case.n_tokens, case.dim))),
        "attention_kv": rows_of(kv),
        "sinks": mx.array(2 + rng.standard_normal(case.heads).astype(np.float32)),
        "rotation": rotation_at(case.start + np.arange(case.n_tokens), case.rope_dim),
        "selected": mx.array(make_selected(case, rng)) if case.k else None,
        "start": case.start,
        "window": case.window,
        "ratio": case.ratio,
    }


def expected_output(inputs: dict[str, Any], **changes: Any) -> np.ndarray:
    plain = {
        name: to_numpy(value) if isinstance(value, mx.array) else value
        for name, value in (inputs | changes).items()
    }
    return reference.attention(**plain, dtype="float32")


def output_bound(inputs: dict[str, Any], expected: np.ndarray) -> np.ndarray:
    """How far the op may be from exact arithmetic.

    A logit is off by ``e``: the spread of D + 2 roundings of sums of |q| |k| / sqrt(D), and the
    rounding of the difference from the maximum. That changes a weight by e relatively, the exp
    by 2 units more; sums over n rows add the spread of n roundings. Weights occur in numerator and
    denominator, and a mean of rows moves by at most that share of the largest row value.
    The rotation mixes two values: sqrt(2), and 3 roundings.
    """
    q, kv = np.abs(to_numpy(inputs["q"])), np.abs(to_numpy(inputs["attention_kv"]))
    rows = np.abs(to_numpy(inputs["rows"]))
    readable = np.concatenate([rows, kv[~np.isnan(kv).any(1)]])
    dim, n = q.shape[2], readable.shape[0]
    sums = (q @ readable.T).max(-1) / np.sqrt(dim)
    e = SPREAD * np.sqrt(dim + 2) * EPS * sums + EPS * 2 * sums
    share = 2 * (e + 4 * EPS + SPREAD * np.sqrt(n) * EPS) + 5 * EPS
    half_unit = 2.0**-8 if inputs["q"].dtype == mx.bfloat16 else EPS
    return np.sqrt(2) * share[..., None] * readable.max() + half_unit * np.abs(expected)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_matches_reference(case: Case, isa: str) -> None:
    inputs = make_inputs(case)
    out = ops.attention(**inputs)
    mx.eval(out)
    assert out.dtype == case.dtype
    expected = expected_output(inputs)
    assert (np.abs(to_numpy(out) - expected) <= output_bound(inputs, expected)).all()


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("heads", "dim"), [(64, 512), (8, 192), (3, 80)])
def test_queries_match_reference(heads: int, dim: int, dtype: mx.Dtype, isa: str) -> None:
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
def test_a_query_sees_exactly_the_rows_it_or_earlier_tokens_closed(ratio: int, isa: str) -> None:
    case = Case(40, 2, 16, 0, ratio, window=8, rope_dim=8)
    inputs = make_inputs(case)
    for row in range(case.n_rows):
        kv = mx.array(inputs["attention_kv"])
        kv[case.window + row] = mx.nan
        seen_by = nan_tokens(ops.attention(**(inputs | {"attention_kv": kv})))
        assert seen_by == [p for p in range(40) if row < (p + 1) // ratio]


@pytest.mark.parametrize("window", [8, 128])
def test_a_query_sees_exactly_the_window_rows(window: int, isa: str) -> None:
    case = Case(200, 2, 16, 0, 0, window=window, rope_dim=8)
    inputs = make_inputs(case)
    for pos in (0, 1, 71, 199):
        rows = mx.array(inputs["rows"])
        rows[pos] = mx.nan
        seen_by = nan_tokens(ops.attention(**(inputs | {"rows": rows})))
        assert seen_by == list(range(pos, min(200, pos + window)))


def test_a_query_sees_exactly_the_ring_rows_before_the_chunk(isa: str) -> None:
    case = Case(12, 2, 16, 21, 0, window=8, rope_dim=8)
    inputs = make_inputs(case)
    for pos in range(14, 21):
        kv = mx.array(inputs["attention_kv"])
        kv[pos % 8] = mx.nan
        seen_by = nan_tokens(ops.attention(**(inputs | {"attention_kv": kv})))
        assert seen_by == [t for t in range(12) if 21 + t - 8 < pos]


def split(inputs: dict[str, Any], chunks: list[int]) -> mx.array:
    """The same tokens in chunks, with the ring written between them by the reference."""
    kv, outputs, first = to_numpy(inputs["attention_kv"]), [], 0
    dtype = inputs["q"].dtype
    for n in chunks:
        part = slice(first, first + n)
        start = inputs["start"] + first
        selected = inputs["selected"]
        outputs.append(
            ops.attention(
                inputs["q"][part],
                inputs["rows"][part],
                mx.array(kv.astype(np.float32)).astype(dtype),
                inputs["sinks"],
                inputs["rotation"][part],
                selected=None if selected is None else selected[part],
                start=start,
                window=inputs["window"],
                ratio=inputs["ratio"],
            )
        )
        rows = to_numpy(inputs["rows"][part])
        kv = reference.window_write(kv, rows, start=start, window=inputs["window"])
        first += n
    return mx.concatenate(outputs)


@pytest.mark.parametrize("n_tokens", [*range(1, 10), 33, 130, 300])
def test_a_query_does_not_depend_on_its_batch(n_tokens: int, isa: str) -> None:
    case = Case(n_tokens, 3, 16, 21, 4, k=16, window=16, rope_dim=8, dtype=mx.bfloat16)
    for inputs in (make_inputs(case), make_inputs(replace(case, k=0, ratio=16))):
        assert same_bits(ops.attention(**inputs), split(inputs, [1] * n_tokens))


@pytest.mark.parametrize("start", [0, 1, 130])
def test_chunks_read_the_ring_before_it_is_written(start: int) -> None:
    case = Case(600, 2, 32, start, 128, rope_dim=16)
    inputs = make_inputs(case)
    whole = ops.attention(**inputs)
    for chunks in ([129, 129, 342], [256, 257, 87], [300, 127, 128, 45]):
        assert same_bits(whole, split(inputs, chunks))
    expected = expected_output(inputs)
    assert (np.abs(to_numpy(whole) - expected) <= output_bound(inputs, expected)).all()


@pytest.mark.parametrize("case", [CASES[0], replace(CASES[2], n_tokens=9)], ids=str)
def test_instruction_sets_and_threads_agree_to_the_bit(
    case: Case, each_isa: Iterator[str], thread_counts: tuple[int, ...]
) -> None:
    inputs = make_inputs(case)
    q = mx.random.normal((case.n_tokens, case.heads * case.dim), key=mx.random.key(1))
    results = []
    for _ in each_isa:
        for n in thread_counts:
            _ext.set_num_threads(n)
            made = ops.attention_queries(
                q, inputs["rotation"], heads=case.heads, eps=1e-6, dtype=case.dtype
            )
            results.append((ops.attention(**inputs), made))
            mx.eval(results[-1])
    for result in results:
        assert all(same_bits(a, b) for a, b in zip(result, results[0], strict=True))


def test_listing_every_visible_row_is_the_same_as_no_list(isa: str) -> None:
    inputs = make_inputs(Case(1, 8, 192, 130, 4))
    listed = mx.array([[-1, *range(32), -1]], dtype=mx.int32)
    assert same_bits(ops.attention(**inputs), ops.attention(**(inputs | {"selected": listed})))


def test_no_selected_row_leaves_the_window(isa: str) -> None:
    inputs = make_inputs(Case(2, 8, 32, 130, 4, rope_dim=16))
    none = mx.full((2, 3), -1, dtype=mx.int32)
    without = ops.attention(**(inputs | {"ratio": 0}))
    assert same_bits(without, ops.attention(**(inputs | {"selected": none})))


def test_large_logits_and_sinks_stay_finite(isa: str) -> None:
    inputs = make_inputs(Case(2, 4, 32, 130, 4, rope_dim=16))
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
def test_wrong_rules_disagree(dtype: mx.Dtype) -> None:
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


def test_strided_inputs_are_accepted() -> None:
    inputs = make_inputs(CASES[3])
    views = {
        name: strided(value) if isinstance(value, mx.array) else value
        for name, value in inputs.items()
    }
    assert same_bits(ops.attention(**inputs), ops.attention(**views))


def test_no_tokens_give_no_rows() -> None:
    inputs = make_inputs(Case(1, 4, 32, 130, 4, k=4, rope_dim=16))
    for name in ("q", "rows", "rotation", "selected"):
        inputs[name] = inputs[name][:0]
    out = ops.attention(**inputs)
    mx.eval(out)
    assert out.shape == (0, 4, 32)


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


@pytest.mark.parametrize("row", [-2, 33, 10**6])
def test_a_selected_row_that_is_not_visible_is_named(row: int) -> None:
    inputs = make_inputs(Case(2, 8, 32, 130, 4, rope_dim=16))
    inputs["selected"] = mx.array([[0, 1], [2, row]], dtype=mx.int32)
    out = ops.attention(**inputs)
    message = rf"selected\[1, 1\] must be -1 or one of the 33 visible rows; got {row}"
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
        ({"start": -1}, r"start must be >= 0 and start \+ T below 2\^31; got -1"),
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
