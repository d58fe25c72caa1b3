"""Window kernels against their reference: rows of tokens, and the ring that keeps them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, same_bits, shifted, strided, to_numpy
from mlx_dsv4 import ops, reference
from mlx_dsv4.reference.rounding import round_trip, to_row_dtype

ROW_EPS = 1e-6
DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}


@dataclass(frozen=True)
class Case:
    n_tokens: int
    dim: int
    rope_dim: int

    def __str__(self) -> str:
        return f"T{self.n_tokens}-D{self.dim}-R{self.rope_dim}"


CASES = [
    Case(1, 512, 64),  # V4-Flash, decode
    Case(40, 512, 64),  # more tokens than one piece of work
    Case(2, 1088, 64),  # half of the slices that a simdgroup holds
    Case(7, 192, 64),
    Case(3, 80, 16),  # one FP8 block and the tail
    Case(2, 64, 0),  # nothing rotates
    Case(2, 64, 64),  # everything rotates
    Case(1, 16, 6),  # the least a row may have
]
BLOCKS_OF_64 = [case for case in CASES if (case.dim - case.rope_dim) % 64 == 0]


def make(case: Case, seed: int = 0) -> dict[str, mx.array]:
    rng = np.random.default_rng(seed)
    frequencies = reference.inverse_frequencies(case.rope_dim, 1e4)
    return {
        "kv": mx.array(3 * rng.standard_normal((case.n_tokens, case.dim)).astype(np.float32)),
        "norm": mx.array(rng.standard_normal(case.dim).astype(np.float32)),
        "rotation": mx.array(
            reference.rotation_table(1000 + np.arange(case.n_tokens), frequencies)
        ),
    }


def make_rows(case: Case, *, dtype: str = "float32", round_trip: str = "none") -> mx.array:
    return ops.window_rows(**make(case), eps=ROW_EPS, round_trip=round_trip, dtype=DTYPES[dtype])


def expected_rows(case: Case, *, dtype: str, round_trip: str) -> np.ndarray:
    arrays = {name: np.array(a) for name, a in make(case).items()}
    return reference.window_rows(**arrays, eps=ROW_EPS, round_trip=round_trip, dtype=dtype)


def row_bound(case: Case) -> float:
    """Relative to the largest value of a row.

    The sum of squares is D/16 + 4 roundings, halved by the root; mean, eps, root, quotient, two
    products: 6; a rotated value is two products and a sum of at most sqrt(2) times the largest.
    """
    return ((case.dim / 16 + 4) / 2 + 6 + 3) * 2**0.5 * EPS


def assert_close_rows(rows: mx.array, expected: np.ndarray, relative: float) -> None:
    bound = relative * np.abs(expected).max(-1, keepdims=True)
    assert np.all(np.abs(to_numpy(rows) - expected) <= bound)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_match_reference(case: Case, executor: str) -> None:
    rows = make_rows(case)
    mx.eval(rows)
    assert_close_rows(
        rows, expected_rows(case, dtype="float32", round_trip="none"), row_bound(case)
    )


@pytest.mark.parametrize("case", BLOCKS_OF_64, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_stored_rows_are_the_rounded_float32_rows(case: Case, dtype: str, executor: str) -> None:
    stored = make_rows(case, dtype=dtype, round_trip="fp8")
    unrounded = to_numpy(make_rows(case))
    expected = to_row_dtype(round_trip(unrounded, "fp8", case.rope_dim), dtype)
    np.testing.assert_array_equal(to_numpy(stored), expected)
    plain = make_rows(case, dtype=dtype)
    np.testing.assert_array_equal(to_numpy(plain), to_row_dtype(unrounded, dtype))


@pytest.mark.parametrize("case", BLOCKS_OF_64, ids=str)
def test_fp8_rows_match_reference_to_one_code(case: Case, executor: str) -> None:
    rows = make_rows(case, dtype="bfloat16", round_trip="fp8")
    expected = expected_rows(case, dtype="bfloat16", round_trip="fp8")
    # A value near the middle of two codes may go either way: codes of a block are at most
    # 2^-3 of its largest value apart; the tail is bfloat16.
    assert_close_rows(rows, expected, 2**-3 + row_bound(case))
    agree = np.mean(to_numpy(rows) == expected)
    assert agree > 0.99


def test_rows_on_numbers_worked_by_hand(executor: str) -> None:
    kv = mx.full((1, 16), 2.0)  # rms 2
    quarter_turn = mx.array([[[0.0, 1.0]]])
    rows = ops.window_rows(
        kv, mx.full((16,), 3.0), quarter_turn, eps=0.0, round_trip="none", dtype=mx.float32
    )
    assert rows.tolist() == [[3.0] * 14 + [-3.0, 3.0]]


def test_a_row_does_not_depend_on_its_batch(executor: str) -> None:
    case, arrays = CASES[1], make(CASES[1])
    together = make_rows(case, dtype="bfloat16", round_trip="fp8")
    for t in range(case.n_tokens):
        alone = ops.window_rows(
            arrays["kv"][t : t + 1],
            arrays["norm"],
            arrays["rotation"][t : t + 1],
            eps=ROW_EPS,
            round_trip="fp8",
            dtype=mx.bfloat16,
        )
        assert same_bits(alone, together[t : t + 1])


def test_thread_orders_agree_to_the_bit(each_order: Callable[[], Iterator[str]]) -> None:
    case, results = Case(300, 512, 64), []
    for _ in each_order():
        results.append(make_rows(case, dtype="bfloat16", round_trip="fp8"))
        mx.eval(results[-1])
    assert all(same_bits(rows, results[0]) for rows in results)
    expected = expected_rows(case, dtype="bfloat16", round_trip="fp8")
    assert_close_rows(results[0], expected, 2**-3 + row_bound(case))


@pytest.mark.parametrize("case", BLOCKS_OF_64, ids=str)
@pytest.mark.parametrize("kind", ["none", "fp8"])
def test_instruction_sets_agree_to_the_bit(case: Case, kind: str, each_isa: list[str]) -> None:
    results = []
    for _ in each_isa:
        results.append(make_rows(case, round_trip=kind))
        mx.eval(results[-1])
    assert all(same_bits(rows, results[0]) for rows in results)


def test_nan_stays_in_its_row(executor: str) -> None:
    arrays = make(CASES[3])
    poisoned = to_numpy(arrays["kv"])
    poisoned[1, 5] = np.nan
    rows = ops.window_rows(
        **arrays | {"kv": mx.array(poisoned.astype(np.float32))},
        eps=ROW_EPS,
        round_trip="fp8",
        dtype=mx.bfloat16,
    )
    clean = make_rows(CASES[3], dtype="bfloat16", round_trip="fp8")
    assert np.isnan(to_numpy(rows[1])).all()
    assert same_bits(rows[2:], clean[2:])
    assert same_bits(rows[:1], clean[:1])


def test_strided_inputs_are_accepted(executor: str) -> None:
    views = {name: strided(a) for name, a in make(CASES[3]).items()}
    rows = ops.window_rows(**views, eps=ROW_EPS, round_trip="none", dtype=mx.float32)
    assert same_bits(rows, make_rows(CASES[3]))


def test_inputs_may_begin_at_any_float(executor: str) -> None:
    views = {name: shifted(a) for name, a in make(CASES[3]).items()}
    rows = ops.window_rows(**views, eps=ROW_EPS, round_trip="none", dtype=mx.float32)
    assert same_bits(rows, make_rows(CASES[3]))


def test_rows_that_a_simdgroup_cannot_hold_are_refused(simulator: str) -> None:
    with pytest.raises(RuntimeError, match=r"\[window_rows\] D must be at most 2048 on the GPU"):
        mx.eval(make_rows(Case(1, 2064, 64)))


def test_no_tokens_give_no_rows(executor: str) -> None:
    rows = make_rows(Case(0, 64, 16))
    mx.eval(rows)
    assert rows.shape == (0, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv": mx.zeros(64)}, r"\[window_rows\] kv must be \[T, D\]; got \(64\)"),
        ({"kv": mx.zeros((2, 64), mx.bfloat16)}, "kv must be float32; got bfloat16"),
        ({"kv": mx.zeros((2, 24))}, "D must be a positive multiple of 16; got 24"),
        ({"norm": mx.zeros(32)}, r"norm must be \[D\] = \(64\); got \(32\)"),
        ({"rotation": mx.zeros((1, 8, 2))}, r"with n = 2 and R <= 64; got \(1,8,2\)"),
        ({"rotation": mx.zeros((2, 33, 2))}, r"with n = 2 and R <= 64; got \(2,33,2\)"),
        ({"dtype": mx.float16}, "dtype must be bfloat16 or float32; got float16"),
        ({"round_trip": "fp8"}, "fp8 needs D - R to be a multiple of 64; got 48"),
        ({"round_trip": "hadamard_fp4"}, "round_trip must be none or fp8; got hadamard_fp4"),
        ({"round_trip": "int8"}, "round_trip must be none, fp8 or hadamard_fp4; got int8"),
    ],
)
def test_bad_row_arguments_name_the_argument(change: dict, message: str) -> None:
    good = {
        "kv": mx.zeros((2, 64)),
        "norm": mx.zeros(64),
        "rotation": mx.zeros((2, 8, 2)),
        "eps": ROW_EPS,
        "round_trip": "none",
        "dtype": mx.float32,
    }
    with pytest.raises(ValueError, match=message):
        ops.window_rows(**(good | change))
