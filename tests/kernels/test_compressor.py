"""Compressor kernels against their reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, same_bits, shifted, strided, to_numpy
from compressed_session import V4_FLASH_SPANS, Arrays, Spans, make_arrays, run
from executors import simulated_extension
from mlx_dsv4 import ops, reference
from mlx_dsv4.reference.rounding import round_trip, to_row_dtype

N_TOKENS = 40


@dataclass(frozen=True)
class Case:
    spans: Spans
    start: int
    n_tokens: int

    def __str__(self) -> str:
        return f"{self.spans}-start{self.start}-T{self.n_tokens}"


WIDE, LONG, INDEX = V4_FLASH_SPANS
SMALL = Spans(ratio=4, c=2, dim=48, rope_dim=16)
POWER_OF_TWO = Spans(ratio=4, c=2, dim=64, rope_dim=0)
TINY_MODEL = Spans(ratio=4, c=2, dim=192, rope_dim=64)
CASES = [
    Case(WIDE, 0, 1),  # no span closes
    Case(WIDE, 3, 1),  # a decode step that closes a span
    Case(WIDE, 0, 8),
    Case(INDEX, 2, 33),  # both ends inside spans
    Case(LONG, 100, 160),
    Case(LONG, 127, 1),
    Case(SMALL, 5, 30),  # feature blocks that are not full
    Case(Spans(ratio=3, c=1, dim=16, rope_dim=0), 4, 20),
    Case(Spans(ratio=1, c=2, dim=32, rope_dim=8), 1, 9),  # every token closes a span
]


def reference_of(
    case: Case, arrays: Arrays, state: tuple[np.ndarray, np.ndarray], dtype: str, kind: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    end = case.start + case.n_tokens
    return reference.compressor_append(
        *arrays.step(case.start, case.n_tokens),
        *state,
        np.full((case.spans.first_row + end // case.spans.ratio, case.spans.dim), np.nan),
        **case.spans.numbers(case.start, kind),
        dtype=dtype,
    )


def random_state(spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    return tuple(
        np.random.default_rng(9)
        .standard_normal((2, spans.c * spans.ratio, spans.c * spans.dim))
        .astype(np.float32)
    )


def run_case(
    case: Case, *, dtype: mx.Dtype = mx.float32, kind: str = "none"
) -> tuple[mx.array, mx.array, mx.array]:
    end = case.start + case.n_tokens
    rows = mx.full((case.spans.first_row + end // case.spans.ratio, case.spans.dim), np.nan, dtype)
    results = ops.compressor_append(
        *map(mx.array, make_arrays(case.spans, end).step(case.start, case.n_tokens)),
        *map(mx.array, random_state(case.spans)),
        rows,
        **case.spans.numbers(case.start, kind),
    )
    mx.eval(results)
    return results


def row_bound(case: Case, norm: np.ndarray) -> float:
    """How far a float32 row may be off.

    Scores of normal draws are 12 apart at most: a weight is off by that, rounded once, and 2 of
    exp; two sums of n items and a quotient follow. Values are below 5, and a weighted mean of n
    normal draws has a root mean square of 1 / sqrt(n) at least. The row adds its norm
    ((D/16 + 4) / 2 + 6) and the rotation (3) of finished values below 6.
    """
    n_items = case.spans.c * case.spans.ratio
    pooled = (12 + 2 + 2 * n_items + 1) * 5 * n_items**0.5
    finished = ((case.spans.dim / 16 + 4) / 2 + 6 + 3) * 6
    return (2 * pooled + finished) * float(norm.max()) * 2**0.5 * EPS


@pytest.mark.parametrize("case", CASES, ids=str)
def test_append_matches_reference(case: Case, executor: str) -> None:
    value, score, rows = run_case(case)
    arrays = make_arrays(case.spans, case.start + case.n_tokens)
    expected = reference_of(case, arrays, random_state(case.spans), "float32", "none")
    np.testing.assert_array_equal(to_numpy(value), expected[0])
    np.testing.assert_array_equal(to_numpy(score), expected[1])
    bound = row_bound(case, arrays.norm)
    np.testing.assert_allclose(to_numpy(rows), expected[2], rtol=0, atol=bound)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_only_rows_of_closed_spans_are_written(case: Case, executor: str) -> None:
    _, _, rows = run_case(case)
    written = np.isfinite(to_numpy(rows)).all(1).nonzero()[0] - case.spans.first_row
    closed = range(case.start // case.spans.ratio, (case.start + case.n_tokens) // case.spans.ratio)
    assert written.tolist() == list(closed)
    assert np.isnan(to_numpy(rows)).any(1).sum() == rows.shape[0] - len(closed)


@pytest.mark.parametrize("spans", [WIDE, INDEX, POWER_OF_TWO], ids=str)
def test_fp8_rows_are_the_rounded_float32_rows(spans: Spans, executor: str) -> None:
    case = Case(spans, 2, 30)
    unrounded = to_numpy(run_case(case)[2])[spans.first_row :]
    stored = to_numpy(run_case(case, kind="fp8")[2])[spans.first_row :]
    np.testing.assert_array_equal(stored, round_trip(unrounded, "fp8", spans.rope_dim))


@pytest.mark.parametrize(
    ("spans", "kind"),
    [
        *((spans, kind) for spans in (INDEX, POWER_OF_TWO) for kind in ("fp8", "hadamard_fp4")),
        (TINY_MODEL, "fp8"),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_round_trips_match_reference_to_one_code(
    spans: Spans, dtype: str, kind: str, executor: str
) -> None:
    case = Case(spans, 0, 40)
    stored = to_numpy(run_case(case, dtype=getattr(mx, dtype), kind=kind)[2])[spans.first_row :]
    arrays = make_arrays(spans, 40)
    expected = reference_of(case, arrays, random_state(spans), dtype, kind)[2][spans.first_row :]
    # A value near the middle of two codes may go either way. Codes are at most 2^-3 (FP8) or
    # 2 of 4 (FP4) of the largest value of their block apart.
    step = {"fp8": 2**-3, "hadamard_fp4": 2 / 4}[kind] + 2**-6
    assert np.all(np.abs(stored - expected) <= step * np.abs(expected).max(-1, keepdims=True))
    assert np.mean(np.isclose(stored, expected, rtol=1e-4, atol=0)) > 0.97


def test_pooled_values_are_rounded_to_the_row_dtype_before_the_norm(executor: str) -> None:
    # One token has all the weight, so the pooled value is its value exactly.
    spans = Spans(ratio=2, c=1, dim=64, rope_dim=0)
    arrays = make_arrays(spans, 2)
    gate = np.zeros_like(arrays.gate)
    gate[0] = -200
    arrays = Arrays(spans, arrays.value, gate, np.zeros_like(arrays.ape), arrays.norm)
    rows = ops.compressor_append(
        *map(mx.array, arrays.step(0, 2)),
        *map(mx.array, reference.empty_state(2, 64, 64)),
        mx.zeros((spans.first_row + 1, 64), mx.bfloat16),
        **spans.numbers(0),
    )[2]
    pooled = to_row_dtype(arrays.value[1], "bfloat16")

    def finished(x: np.ndarray) -> np.ndarray:
        return to_row_dtype(x / np.sqrt(np.mean(x**2) + 1e-6) * arrays.norm, "bfloat16")

    stored = to_numpy(rows)[-1]
    # Both round a value that float32 knows to 20 ulp: a step of bfloat16 apart, and rarely.
    np.testing.assert_allclose(stored, finished(pooled), rtol=2**-7, atol=0)
    assert np.mean(stored == finished(pooled)) > 0.98
    assert np.mean(stored == finished(arrays.value[1].astype(np.float64))) < 0.9


def test_append_on_numbers_worked_by_hand(executor: str) -> None:
    # Two spans of two tokens, D = 16. Equal scores: span 0 pools its own two, span 1 all four.
    value = np.zeros((4, 32), np.float32)
    value[:, :16] = np.array([1, 2, 0, 0])[:, None]  # read by the next span
    value[:, 16:] = np.array([3, 5, 6, 7])[:, None]  # read by its own
    outputs = ops.compressor_append(
        mx.array(value),
        mx.zeros((4, 32)),
        mx.zeros((2, 32)),
        mx.array(np.arange(16, dtype=np.float32)),
        mx.zeros((2, 0, 2)),
        *map(mx.array, reference.empty_state(2, 32, 16)),
        mx.zeros((2, 16)),
        start=0,
        ratio=2,
        first_row=0,
        eps=12.0,  # (mean of squares, eps) = (4^2, 12), then (4^2, 12): no square root to round
        round_trip="none",
    )
    scale = 4 / 28**0.5
    np.testing.assert_allclose(to_numpy(outputs[2]), [np.arange(16) * scale] * 2, rtol=4 * EPS)
    np.testing.assert_array_equal(to_numpy(outputs[0])[:2], value[2:])
    assert to_numpy(outputs[0])[2:].max() == 0
    assert np.isneginf(to_numpy(outputs[1])[2:]).all()
    np.testing.assert_array_equal(to_numpy(outputs[1])[:2], 0)


def test_an_empty_previous_span_adds_nothing(executor: str) -> None:
    # With everything else equal, span 0 is what a compressor without overlap makes of it.
    arrays = make_arrays(SMALL, 4)
    *_, rows = run(arrays, [4])
    alone = Spans(ratio=4, c=1, dim=SMALL.dim, rope_dim=SMALL.rope_dim)
    own = slice(SMALL.dim, 2 * SMALL.dim)
    single = Arrays(
        alone, arrays.value[:, own], arrays.gate[:, own], arrays.ape[:, own], arrays.norm
    )
    *_, expected = run(single, [4])
    assert same_bits(rows, expected)


def test_nan_poisons_the_rows_pooled_from_it_alone(executor: str) -> None:
    arrays = make_arrays(SMALL, 24)
    arrays.gate[9] = np.nan  # span 2; span 3 reads it as its previous span
    *_, rows = run(arrays, [7, 6, 11])
    clean = run(make_arrays(SMALL, 24), [24])[2]
    poisoned = np.isnan(to_numpy(rows)[SMALL.first_row :]).all(1).nonzero()[0]
    assert poisoned.tolist() == [2, 3]
    for row in (0, 1, 4, 5):
        assert same_bits(rows[SMALL.first_row + row], clean[SMALL.first_row + row])


def test_scores_far_apart_stay_finite(executor: str) -> None:
    arrays = make_arrays(SMALL, 8)
    arrays.gate[:] *= 1e4
    *_, rows = run(arrays, [8])
    assert np.isfinite(to_numpy(rows)[SMALL.first_row :]).all()


@pytest.mark.parametrize("case", [Case(WIDE, 2, 130), Case(LONG, 100, 300)], ids=str)
def test_thread_orders_agree_to_the_bit(
    case: Case, each_order: Callable[[], Iterator[str]]
) -> None:
    results = [run_case(case, dtype=mx.bfloat16, kind="fp8") for _ in each_order()]
    for result in results:
        assert all(same_bits(a, b) for a, b in zip(result, results[0], strict=True))


@pytest.mark.parametrize("kind", ["none", "fp8", "hadamard_fp4"])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_instruction_sets_agree_to_the_bit(kind: str, dtype: mx.Dtype, each_isa: list[str]) -> None:
    results = []
    for _ in each_isa:
        results.append(run_case(Case(INDEX, 2, 33), dtype=dtype, kind=kind))
    for result in results:
        assert all(same_bits(a, b) for a, b in zip(result, results[0], strict=True))


def test_strided_inputs_are_accepted(executor: str) -> None:
    arrays = make_arrays(SMALL, 9)
    plain = run(arrays, [9])
    views = run(arrays, [9], view=strided)
    assert all(same_bits(a, b) for a, b in zip(plain, views, strict=True))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_arrays_may_begin_at_any_element(dtype: mx.Dtype, executor: str) -> None:
    case = Case(SMALL, 5, 9)
    inputs = [*map(mx.array, make_arrays(SMALL, 14).step(5, 9))]
    held = [*map(mx.array, random_state(SMALL)), mx.full((SMALL.first_row + 3, 48), np.nan, dtype)]
    views = [shifted(a) for a in (*inputs, *held)]
    results = ops.compressor_append(*views, **SMALL.numbers(5))
    plain = run_case(case, dtype=dtype)
    assert all(same_bits(a, b) for a, b in zip(results, plain, strict=True))


@pytest.mark.parametrize("n_tokens", [0, 1, 3])
def test_rows_may_be_missing_until_a_span_closes(n_tokens: int, executor: str) -> None:
    arrays = make_arrays(SMALL, 3)
    state = map(mx.array, random_state(SMALL))
    step = map(mx.array, arrays.step(0, n_tokens))
    value, score, rows = ops.compressor_append(
        *step, *state, mx.zeros((0, SMALL.dim)), **SMALL.numbers(0)
    )
    expected = random_state(SMALL)[0]
    expected[4 : 4 + n_tokens] = arrays.value[:n_tokens]
    np.testing.assert_array_equal(to_numpy(value), expected)
    mx.eval(score, rows)
    assert rows.shape == (0, SMALL.dim)


def test_a_step_is_one_launch_and_a_chunk_two(simulator: str) -> None:
    controls = simulated_extension().controls
    arrays = make_arrays(SMALL, 12)
    controls.clear_launches()
    run(arrays, [1, 3, 8])  # nothing closes, one span, two
    assert [launch["kernel"] for launch in controls.launches()] == [
        *["compressor_append_float_1"] * 3,
        "compressor_advance",
    ]


def test_held_arrays_are_written_in_place(executor: str) -> None:
    arrays = make_arrays(SMALL, 40)
    held = [*map(mx.array, reference.empty_state(4, 96, 48)), mx.zeros((SMALL.first_row + 10, 48))]
    mx.eval(held)
    addresses = [ops.data_pointer(a) for a in held]
    handles = held  # the first handles stay alive
    for pos in range(40):
        step = map(mx.array, arrays.step(pos, 1))
        handles = ops.compressor_append(*step, *handles, **SMALL.numbers(pos))
        mx.async_eval(handles)
    mx.eval(handles)
    assert [ops.data_pointer(a) for a in handles] == addresses
    assert all(same_bits(a, b) for a, b in zip(held, handles, strict=True))


@pytest.mark.parametrize("name", ["state_value", "state_score", "rows"])
def test_a_held_array_that_cannot_alias_is_refused_untouched(name: str, executor: str) -> None:
    arguments = good_arguments()
    arguments[name] = strided(arguments[name])
    with pytest.raises(RuntimeError, match=rf"\[compressor_append\] {name} must be row-contig"):
        mx.eval(ops.compressor_append(**arguments))
    assert all(to_numpy(arguments[held]).max() == 0 for held in ("state_value", "rows"))


def good_arguments() -> dict:
    return {
        "value": mx.ones((5, 64)),
        "gate": mx.ones((5, 64)),
        "ape": mx.zeros((4, 64)),
        "norm": mx.ones(32),
        "rotation": mx.ones((2, 4, 2)),
        "state_value": mx.zeros((8, 64)),
        "state_score": mx.zeros((8, 64)),
        "rows": mx.zeros((6, 32)),
        "start": 3,
        "ratio": 4,
        "first_row": 4,
        "eps": 1e-6,
        "round_trip": "none",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": mx.zeros((5, 96))}, r"value must be \[T, D\] or \[T, 2 D\] with D = 32"),
        ({"value": mx.zeros((5, 64), mx.bfloat16)}, "value must be float32; got bfloat16"),
        ({"gate": mx.zeros((4, 64))}, r"gate must be the shape of value = \(5,64\); got \(4,64\)"),
        ({"ape": mx.zeros((3, 64))}, r"ape must be \[ratio, c \* D\] = \(4,64\); got \(3,64\)"),
        ({"norm": mx.zeros(64)}, r"norm must be \[D\] = \(32\); got \(64\)"),
        ({"rotation": mx.zeros((1, 4, 2))}, r"rotation must be .* n = 2 and R <= 32; got \(1,4,2"),
        ({"state_value": mx.zeros((4, 64))}, r"state_value must be .* = \(8,64\); got \(4,64\)"),
        ({"state_score": mx.zeros((8, 32))}, r"state_score must be .* = \(8,64\); got \(8,32\)"),
        (
            {"rows": mx.zeros((5, 32))},
            r"rows must hold row 5 \(first_row 4 \+ span 1\); got \(5,32",
        ),
        ({"rows": mx.zeros((6, 32), mx.float16)}, "rows must be bfloat16 or float32; got float16"),
        ({"rows": mx.zeros((6, 24))}, "D must be a positive multiple of 16; got 24"),
        ({"first_row": -1}, "first_row must be >= 0; got -1"),
        ({"ratio": 0}, "ratio must be >= 1; got 0"),
        ({"start": -1}, r"start must be in 0\.\.\d+ for 5 tokens; got -1"),
        ({"round_trip": "fp8"}, "fp8 needs D - R to be a multiple of 64; got 24"),
        ({"round_trip": "q8"}, "round_trip must be none, fp8 or hadamard_fp4; got q8"),
    ],
)
def test_bad_arguments_name_the_argument(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.compressor_append(**(good_arguments() | change))
