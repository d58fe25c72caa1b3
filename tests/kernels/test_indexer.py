"""Indexer kernels against their reference."""

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, same_bits, strided, to_numpy
from indexer_inputs import SCALE, Case, make_inputs, place
from mlx_dsv4 import _ext, ops, reference

SPREAD = 5  # standard deviations that a sum of independent rounding errors may be off


CASES = [
    Case(1, 64, 128, 1043, 4, mx.bfloat16),  # V4-Flash, decode; two blocks of rows, a part panel
    Case(5, 16, 128, 390, 4),  # the tiny model
    Case(5, 16, 128, 390, 4, mx.bfloat16),
    Case(1, 1, 16, 3, 4),  # one head, one row
    Case(20, 19, 48, 0, 4),  # an odd number of heads, more tokens than one block
    Case(3, 8, 32, 0, 4),  # nobody sees a row
    Case(7, 11, 16, 100, 16, mx.bfloat16),
    Case(2, 70, 144, 600, 4, mx.bfloat16),  # more heads and dims than a GPU kernel holds
    Case(1, 70, 32, 40, 4),  # more heads alone, so that it cannot keep a token's queries
]
RAGGED = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 127, 128, 129, 511, 512, 513)


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    """Thread counts to compare; puts the usual one back afterwards."""
    usual = _ext.num_threads()
    yield (1, 2)
    _ext.set_num_threads(usual)


def score_bound(inputs: dict[str, np.ndarray], n_rows: int) -> np.ndarray:
    """Spread of D + I + 3 roundings, each relative to the sum of magnitudes at most."""
    q, w, rows = (np.abs(inputs[name]) for name in ("q", "w", "rows"))
    magnitude = np.einsum("thd,rd,th->tr", q, rows[:n_rows], w * SCALE)
    return SPREAD * np.sqrt(q.shape[2] + q.shape[1] + 3) * EPS * magnitude


def shifted(a: mx.array) -> mx.array:
    """The same values as a row-contiguous view that begins one element into its buffer."""
    return mx.concatenate([mx.zeros(1, a.dtype), a.reshape(-1)])[1:].reshape(a.shape)


def make_queries(heads: int, dim: int) -> tuple[mx.array, mx.array]:
    q = np.random.default_rng(3).standard_normal((4, heads * dim)).astype(np.float32)
    positions = np.array([0, 1, 127, 70_000])
    rotation = reference.rotation_table(positions, reference.inverse_frequencies(16, 1e4))
    return mx.array(q), mx.array(rotation)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("heads", "dim"), [(16, 128), (3, 32)])
def test_plain_queries_match_reference(
    heads: int, dim: int, dtype: mx.Dtype, executor: str
) -> None:
    q, rotation = make_queries(heads, dim)
    out = ops.indexer_queries(q, rotation, heads=heads, round_trip="none", dtype=dtype)
    mx.eval(out)
    assert out.dtype == dtype
    exact = reference.indexer_queries(
        to_numpy(q), to_numpy(rotation), heads=heads, round_trip="none", dtype="float32"
    )
    # Two products and a sum of values up to the largest, then half a unit of the row dtype.
    half_unit = 2.0**-8 if dtype == mx.bfloat16 else EPS
    bound = 4 * EPS * np.abs(to_numpy(q)).max() + half_unit * np.abs(exact)
    assert (np.abs(to_numpy(out) - exact) <= bound).all()


@pytest.mark.parametrize(("heads", "dim"), [(16, 128), (3, 32)])
def test_official_queries_match_reference(heads: int, dim: int, executor: str) -> None:
    q, rotation = make_queries(heads, dim)
    out = ops.indexer_queries(
        q, rotation, heads=heads, round_trip="hadamard_fp4", dtype=mx.bfloat16
    )
    mx.eval(out)
    expected = reference.indexer_queries(
        to_numpy(q), to_numpy(rotation), heads=heads, round_trip="hadamard_fp4", dtype="bfloat16"
    )
    # Float32 may put a value that lies on a boundary of FP4 on its other side; few do.
    assert (to_numpy(out) != expected).mean() < 1e-3


def expect_scores(case: Case, inputs: dict[str, mx.array]) -> mx.array:
    scores = ops.indexer_scores(**inputs, **place(case))
    mx.eval(scores)
    plain = {name: to_numpy(a) for name, a in inputs.items()}
    expected = reference.indexer_scores(**plain, **place(case))
    assert scores.shape == expected.shape == (case.n_tokens, case.n_rows)
    hidden = np.isneginf(expected)
    np.testing.assert_array_equal(np.isneginf(to_numpy(scores)), hidden)
    error = np.abs(to_numpy(scores) - np.where(hidden, 0, expected))[~hidden]
    assert (error <= score_bound(plain, case.n_rows)[~hidden]).all()
    return scores


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scores_match_reference(case: Case, executor: str) -> None:
    expect_scores(case, make_inputs(case))


@pytest.mark.parametrize("n_rows", RAGGED)
def test_any_number_of_rows_is_scored_and_selected_from(n_rows: int, executor: str) -> None:
    for n_tokens in (1, 6):
        case = Case(n_tokens, 3, 32, max(0, 4 * n_rows - n_tokens + n_rows % 4), 4, mx.bfloat16)
        inputs = make_inputs(case, spare=0)
        scores = expect_scores(case, inputs)
        for k in (16, 512):
            selected = ops.indexer_select(**inputs, **place(case), k=k)
            expected = reference.indexer_topk(to_numpy(scores), start=case.start, ratio=4, k=k)
            np.testing.assert_array_equal(np.array(selected), expected)


@pytest.mark.parametrize("ratio", [4, 16])
def test_a_token_sees_exactly_the_rows_it_or_earlier_tokens_closed(
    ratio: int, executor: str
) -> None:
    inputs = make_inputs(Case(13, 2, 16, 0, ratio))
    scores = to_numpy(ops.indexer_scores(**inputs, start=0, ratio=ratio, scale=SCALE))
    for pos in range(13):
        seen = np.isfinite(scores[pos])
        np.testing.assert_array_equal(seen, np.arange(13 // ratio) < (pos + 1) // ratio)


def test_a_negative_product_counts_as_zero(executor: str) -> None:
    q = mx.array([[[1.0] * 16, [-1.0] * 16]])
    rows = mx.ones((1, 16))
    scores = ops.indexer_scores(q, mx.array([[2.0, 100.0]]), rows, start=3, ratio=4, scale=1.0)
    assert scores.tolist() == [[32.0]]


def test_nan_and_infinite_rows_reach_the_score(executor: str) -> None:
    rows = np.ones((3, 16), np.float32)
    rows[0, 5], rows[1, 3] = np.nan, np.inf
    scores = ops.indexer_scores(
        mx.ones((1, 3, 16)), mx.ones((1, 3)), mx.array(rows), start=11, ratio=4, scale=1.0
    )
    np.testing.assert_array_equal(to_numpy(scores), [[np.nan, np.inf, 48.0]])


@pytest.mark.parametrize(
    "n_tokens", [*range(1, 10), 33, 130, pytest.param(300, marks=pytest.mark.realistic)]
)
def test_a_token_does_not_depend_on_its_batch(n_tokens: int, executor: str) -> None:
    case = Case(n_tokens, 5, 16, 1021, 4, mx.bfloat16)
    inputs = make_inputs(case)
    together = ops.indexer_scores(**inputs, **place(case))
    for t in range(n_tokens):
        one = slice(t, t + 1)
        alone = ops.indexer_scores(
            inputs["q"][one],
            inputs["w"][one],
            inputs["rows"],
            start=case.start + t,
            ratio=4,
            scale=SCALE,
        )
        assert same_bits(alone, together[one, : alone.shape[1]])


def test_a_token_is_scored_alike_alone_and_with_others(executor: str) -> None:
    """A GPU kernel keeps a lone token's queries over several tiles of rows, or tokens' rows."""
    case = Case(3, 2, 16, 4 * 33_000 - 3, 4, mx.bfloat16)
    inputs = make_inputs(case, spare=0)
    together = ops.indexer_scores(**inputs, **place(case))
    for t in (0, 2):
        q, w = (inputs[name][t : t + 1] for name in ("q", "w"))
        alone = ops.indexer_scores(q, w, inputs["rows"], start=case.start + t, ratio=4, scale=SCALE)
        assert same_bits(alone, together[t : t + 1, : alone.shape[1]])


def test_thread_orders_agree_to_the_bit(each_order: Callable[[], Iterator[str]]) -> None:
    for case, k in (
        (Case(1, 64, 128, 4 * 1100, 4, mx.bfloat16), 512),
        (Case(16, 64, 128, 4 * 600, 4, mx.bfloat16), 512),
        (Case(1, 1, 16, 4 * 262_143 + 3, 4, mx.bfloat16), 512),
    ):
        inputs = make_inputs(case)
        results = []
        for _ in each_order():
            scores = ops.indexer_scores(**inputs, **place(case))
            selected = ops.indexer_select(**inputs, **place(case), k=k)
            mx.eval(scores, selected)
            results.append((scores, selected))
        for result in results:
            assert all(same_bits(a, b) for a, b in zip(result, results[0], strict=True))


def test_instruction_sets_and_threads_agree_to_the_bit(
    each_isa: Iterator[str], thread_counts: tuple[int, ...]
) -> None:
    results = []
    case = Case(2, 19, 128, 1300, 4, mx.bfloat16)
    inputs = make_inputs(case)
    rotation = mx.array(reference.rotation_table(np.arange(2), np.ones(8)))
    q = mx.random.normal((2, 19 * 128), key=mx.random.key(1))
    for _ in each_isa:
        for n in thread_counts:
            _ext.set_num_threads(n)
            results.append(
                (
                    ops.indexer_scores(**inputs, **place(case)),
                    ops.indexer_select(**inputs, **place(case), k=40),
                    ops.indexer_queries(
                        q, rotation, heads=19, round_trip="hadamard_fp4", dtype=mx.bfloat16
                    ),
                )
            )
            mx.eval(results[-1])
    for result in results:
        assert all(same_bits(a, b) for a, b in zip(result, results[0], strict=True))


def test_strided_inputs_are_accepted(executor: str) -> None:
    case = CASES[1]
    inputs = make_inputs(case)
    views = {name: strided(a) for name, a in inputs.items()}
    plain = ops.indexer_scores(**inputs, **place(case))
    assert same_bits(plain, ops.indexer_scores(**views, **place(case)))
    chosen = ops.indexer_select(**inputs, **place(case), k=16)
    assert same_bits(chosen, ops.indexer_select(**views, **place(case), k=16))
    assert same_bits(chosen, ops.indexer_topk(strided(plain), start=390, ratio=4, k=16))


@pytest.mark.parametrize("case", CASES[1:3], ids=str)
def test_inputs_may_begin_at_any_element(case: Case, executor: str) -> None:
    inputs = make_inputs(case)
    views = {name: shifted(a) for name, a in inputs.items()}
    mx.eval(views)
    plain = ops.indexer_scores(**inputs, **place(case))
    assert same_bits(plain, ops.indexer_scores(**views, **place(case)))
    chosen = ops.indexer_topk(plain, start=390, ratio=4, k=16)
    assert same_bits(chosen, ops.indexer_topk(shifted(plain), start=390, ratio=4, k=16))


def test_no_tokens_give_no_rows(executor: str) -> None:
    q, w, rows = mx.zeros((0, 4, 16)), mx.zeros((0, 4)), mx.zeros((9, 16))
    assert ops.indexer_scores(q, w, rows, start=12, ratio=4, scale=1.0).shape == (0, 3)
    selected = ops.indexer_select(q, w, rows, start=12, ratio=4, scale=1.0, k=5)
    mx.eval(selected)
    assert selected.shape == (0, 5)


def test_reference_on_numbers_worked_by_hand() -> None:
    q, rows = np.ones((1, 2, 2)), np.array([[1.0, 1.0], [2.0, -1.0], [-1.0, -1.0]])
    scores = reference.indexer_scores(
        q, np.array([[1.0, -3.0]]), rows, start=11, ratio=4, scale=0.5
    )
    assert scores.tolist() == [[-2.0, -1.0, 0.0]]
    assert reference.indexer_topk(scores, start=11, ratio=4, k=2).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": mx.zeros((1, 4, 8))}, r"\[indexer_select\] q must be \[T, I, D\] with D a multi"),
        ({"q": mx.zeros((1, 4, 16), mx.float16)}, r"q must be bfloat16 or float32; got float16"),
        ({"w": mx.zeros((1, 3))}, r"w must be \[T, I\] = \(1,4\); got \(1,3\)"),
        ({"w": mx.zeros((1, 4), mx.bfloat16)}, r"w must be float32; got bfloat16"),
        ({"rows": mx.zeros((9, 16), mx.bfloat16)}, r"rows must be float32; got bfloat16"),
        ({"rows": mx.zeros((9, 32))}, r"rows must be \[capacity, D\] with D = 16; got \(9,32\)"),
        ({"rows": mx.zeros((2, 16))}, r"rows must hold the 3 visible rows; got \(2,16\)"),
        ({"start": -1}, r"start must be in 0\.\.\d+ for \d+ tokens; got -1"),
        ({"start": 2**31 - 1}, r"start must be in 0\.\.\d+ for \d+ tokens; got 2147483647"),
        ({"start": 2**31}, r"start must be in 0\.\.\d+ for \d+ tokens; got 2147483648"),
        ({"ratio": 0}, r"ratio must be >= 1; got 0"),
        ({"k": 0}, r"k must be >= 1; got 0"),
    ],
)
def test_bad_arguments_name_the_argument(change: dict, message: str) -> None:
    good = {
        "q": mx.zeros((1, 4, 16)),
        "w": mx.zeros((1, 4)),
        "rows": mx.zeros((9, 16)),
        "start": 11,
        "ratio": 4,
        "scale": 1.0,
        "k": 2,
    }
    with pytest.raises(ValueError, match=message):
        ops.indexer_select(**(good | change))


def test_bad_scores_and_queries_name_the_argument() -> None:
    with pytest.raises(ValueError, match=r"\[indexer_topk\] scores must be \[T, \(start \+ T\)"):
        ops.indexer_topk(mx.zeros((1, 4)), start=11, ratio=4, k=2)
    rotation = mx.zeros((1, 8, 2))
    good = {"heads": 2, "round_trip": "none", "dtype": mx.float32}
    for q, change, message in (
        (mx.zeros((1, 40)), {}, r"q must be \[T, I \* D\] with I = 2 and D a multiple of 16"),
        (mx.zeros((1, 32)), {"dtype": mx.float16}, r"dtype must be bfloat16 or float32"),
        (mx.zeros((1, 32)), {"round_trip": "fp4"}, r"round_trip must be none, fp8 or hadamard"),
        (mx.zeros((2, 32)), {}, r"rotation must be \[n, R/2, 2\] with n = 2"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.indexer_queries(q, rotation, **(good | change))


@pytest.mark.parametrize("op", [ops.attention_queries, ops.indexer_queries])
def test_as_many_heads_as_an_int_holds_are_refused(op) -> None:
    settings = {"eps": 1e-6} if op is ops.attention_queries else {"round_trip": "none"}
    with pytest.raises(ValueError, match="D a multiple of 16; got"):
        op(mx.zeros((1, 64)), mx.zeros((1, 8, 2)), heads=1 << 28, dtype=mx.float32, **settings)
