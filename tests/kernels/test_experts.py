"""Routed experts against their reference."""

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, same_bits, strided, to_numpy
from executors import SIMULATORS
from expert_cases import Case, Formats, Inputs, bound, expect, make, rows, run
from mlx_dsv4 import _ext, ops, reference
from mlx_dsv4.gguf.blocks import quantize

MIXED: Formats = ("q8_0", "mxfp4", "bf16")
CASES = [
    Case(1, 1, 1, 32, 32),  # the only expert
    Case(1, 8, 6, 96, 64, ("mxfp4",) * 3),  # decode
    Case(3, 8, 2, 160, 96, ("f16", "q8_0", "mxfp4")),
    Case(9, 8, 3, 70, 45, ("bf16", "f32", "f16")),  # neither width fills lanes
    Case(40, 4, 2, 544, 96, MIXED),  # both matrices in pieces, groups of many tokens
    Case(220, 2, 2, 64, 64, ("q8_0",) * 3),  # groups of more tokens than a panel
]


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads."""
    before = _ext.num_threads()
    yield
    _ext.set_num_threads(before)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(case: Case, executor: str) -> None:
    inputs = make(case)
    error = np.abs(to_numpy(run(case, inputs)) - expect(case, inputs))
    assert (error <= bound(case, inputs)).all()


@pytest.mark.parametrize("formats", [("mxfp4",) * 3, MIXED], ids=str)
def test_a_token_does_not_depend_on_its_batch(formats: Formats, executor: str) -> None:
    batches = (*range(1, 10), 33) if executor in SIMULATORS else (*range(1, 10), 33, 130)
    case = Case(max(batches), 8, 3, 96, 64, formats)
    inputs = make(case)
    alone = [run(case, rows(inputs, t, t + 1)) for t in range(case.n_tokens)]
    for n in batches:
        assert same_bits(run(case, rows(inputs, 0, n)), mx.concatenate(alone[:n]))


@pytest.mark.realistic
def test_more_tokens_than_one_block_of_scratch_holds(executor: str) -> None:
    case = Case(1030, 8, 2, 64, 32, ("q8_0",) * 3)
    inputs = make(case)
    whole = run(case, inputs)
    parts = [run(case, rows(inputs, begin, begin + 103)) for begin in range(0, 1030, 103)]
    assert same_bits(whole, mx.concatenate(parts))


@pytest.mark.parametrize("n_tokens", [1, 20])
def test_instruction_sets_agree_to_the_bit(n_tokens: int, each_isa: Iterator[str]) -> None:
    case = Case(n_tokens, 4, 3, 160, 96, ("f16", "q8_0", "mxfp4"))
    results = [run(case, make(case)) for _ in each_isa]
    assert all(same_bits(r, results[0]) for r in results)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("n_tokens", [1, 20])
def test_the_number_of_threads_does_not_matter(n_tokens: int) -> None:
    case = Case(n_tokens, 8, 3, 96, 160, ("mxfp4",) * 3)
    results = []
    for n in (1, 2, 3):
        _ext.set_num_threads(n)
        results.append(run(case, make(case)))
    assert all(same_bits(r, results[0]) for r in results)


@pytest.mark.parametrize("n_tokens", [1, 30])
def test_the_order_of_ids_does_not_matter(n_tokens: int, executor: str) -> None:
    case = Case(n_tokens, 8, 4, 64, 32, ("q8_0",) * 3)
    inputs = make(case)
    shuffled = vars(inputs) | {
        "ids": inputs.ids[:, [2, 0, 3, 1]],
        "weights": inputs.weights[:, [2, 0, 3, 1]],
    }
    assert same_bits(run(case, inputs), run(case, Inputs(**shuffled)))


def test_an_id_that_stands_twice_counts_twice(executor: str) -> None:
    case = Case(5, 4, 3, 64, 32, ("q8_0",) * 3)
    inputs = make(case)
    inputs.ids[:] = [[2, 0, 2], [1, 1, 1], [3, 3, 0], [0, 1, 2], [2, 2, 1]]
    error = np.abs(to_numpy(run(case, inputs)) - expect(case, inputs))
    assert (error <= bound(case, inputs)).all()


@pytest.mark.parametrize("n_tokens", [1, 30])
def test_experts_that_are_not_chosen_are_not_read(n_tokens: int, executor: str) -> None:
    case = Case(n_tokens, 8, 2, 64, 32)
    inputs = make(case)
    inputs.ids[:] = [5, 1]
    expected = run(case, inputs)
    hidden = [0, 2, 3, 4, 6, 7]
    for matrix in (inputs.gate, inputs.up, inputs.down):
        matrix.view(np.float32)[hidden] = np.nan
    assert same_bits(run(case, inputs), expected)


@pytest.mark.parametrize("n_tokens", [1, 8])
def test_clamps_bound_the_gate_above_and_up_on_both_sides(n_tokens: int, executor: str) -> None:
    # Rows of gate and up pick one value of x each, so that all pairs of ±50 and ±1 meet.
    values = np.array([50, -50, 1, -1], np.float32)
    pairs = np.array([(g, u) for g in range(4) for u in range(4)])
    gate, up = (quantize(np.eye(4)[pairs[:, i]][None], "f32") for i in (0, 1))
    case = Case(n_tokens, 1, 1, 4, 16)
    for first in range(0, 16, 4):  # four of the hidden values come out
        down = quantize(np.eye(16)[None, first : first + 4], "f32")
        out = run(
            case,
            Inputs(
                np.tile(values, (n_tokens, 1)),
                np.zeros((n_tokens, 1), np.int32),
                np.ones((n_tokens, 1), np.float32),
                gate,
                up,
                down,
            ),
        )
        g = np.minimum(values[pairs[first : first + 4, 0]].astype(np.float64), 10)
        u = np.clip(values[pairs[first : first + 4, 1]].astype(np.float64), -10, 10)
        expected = np.tile(g / (1 + np.exp(-g)) * u, (n_tokens, 1))
        np.testing.assert_allclose(to_numpy(out), expected, rtol=8 * EPS, atol=0)


@pytest.mark.parametrize("n_tokens", [3, 30])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_token_spoils_only_itself(value: float, n_tokens: int, executor: str) -> None:
    case = Case(n_tokens, 4, 2, 64, 32, ("q8_0",) * 3)
    inputs = make(case)
    clean = to_numpy(run(case, inputs))
    inputs.x[1, 40] = value
    out = to_numpy(run(case, inputs))
    assert not np.isfinite(out[1]).any()
    others = [t for t in range(n_tokens) if t != 1]
    np.testing.assert_array_equal(out[others], clean[others])


@pytest.mark.parametrize("name", ["gate", "up"])
def test_clamps_let_nan_through(name: str, executor: str) -> None:
    case = Case(2, 1, 1, 32, 16)
    inputs = make(case)
    getattr(inputs, name).view(np.float32)[0, 3, 0] = np.nan
    assert np.isnan(to_numpy(run(case, inputs))).all()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("n_tokens", [1, 9])
def test_nan_of_an_earlier_call_does_not_come_back(n_tokens: int, executor: str) -> None:
    _ext.set_num_threads(1)  # both calls use the same scratch
    case = Case(n_tokens, 2, 1, 70, 13, ("f16",) * 3)
    inputs = make(case)
    wide = Case(9, 2, 2, 96, 64)
    poisoned = make(wide)
    poisoned.x[:] = np.nan
    run(wide, poisoned)
    error = np.abs(to_numpy(run(case, inputs)) - expect(case, inputs))
    assert (error <= bound(case, inputs)).all()


def test_strided_tokens_are_accepted(executor: str) -> None:
    case = Case(3, 4, 2, 64, 32, ("q8_0",) * 3)
    x, ids, weights, *matrices = make(case).arrays()
    plain = ops.experts(x, ids, weights, *matrices, formats=case.formats, clamp=10.0)
    views = [strided(a) for a in (x, ids, weights)]
    assert same_bits(plain, ops.experts(*views, *matrices, formats=case.formats, clamp=10.0))


def test_no_tokens_give_no_rows(executor: str) -> None:
    case = Case(0, 4, 2, 64, 32)
    assert run(case, make(case)).shape == (0, 64)


def test_reference_on_numbers_worked_by_hand() -> None:
    # gate 20 is clamped to 10, up -20 to -10; silu(10) is 10 * sigmoid(10); expert 1 counts 2 + 1.
    x, ids = np.ones((1, 1), np.float32), np.array([[1, 1]])
    gate, up = (quantize(np.array([[[0.0]], [[v]]]), "f32") for v in (20.0, -20.0))
    down = quantize(np.array([[[7.0]], [[3.0]]]), "f32")
    weights = np.array([[2.0, 1.0]])
    out = reference.experts(
        x, ids, weights, gate, up, down, formats=("f32", "f32", "f32"), clamp=10.0
    )
    np.testing.assert_allclose(out, [[-900 / (1 + np.exp(-10))]], rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": mx.zeros(64)}, r"\[experts\] x must be \[T, K\]; got \(64\)"),
        ({"x": mx.zeros((2, 64), mx.bfloat16)}, "x must be float32; got bfloat16"),
        ({"ids": mx.zeros((2, 3))}, "ids must be int32; got float32"),
        ({"ids": mx.zeros((3, 3), mx.int32)}, r"ids must be \[T, k\] with T = 2; got \(3,3\)"),
        ({"ids": mx.zeros((2, 0), mx.int32)}, r"ids must be \[T, k\] with T = 2; got \(2,0\)"),
        ({"weights": mx.zeros((2, 2))}, r"weights must be \[T, k\] = \(2,3\); got \(2,2\)"),
        ({"gate": mx.zeros((4, 68), mx.uint8)}, r"gate must be \[E, F, row_bytes\]; got \(4,68\)"),
        ({"gate": mx.zeros((4, 32, 67), mx.uint8)}, "row_bytes = 68 for 64 values"),
        ({"up": mx.zeros((4, 31, 68), mx.uint8)}, r"up must be .* = \(4,32,68\); got \(4,31,68\)"),
        ({"up": mx.zeros((3, 32, 68), mx.uint8)}, r"up must be .* = \(4,32,68\); got \(3,32,68\)"),
        ({"down": mx.zeros((4, 64, 34))}, "down must be uint8; got float32"),
        ({"down": mx.zeros((4, 63, 34), mx.uint8)}, r"down must be .* = \(4,64,34\)"),
        ({"formats": ("q8_0", "q8_0", "tq1_0")}, "formats must be one of .*; got tq1_0"),
        ({"clamp": 0.0}, "clamp must be positive; got 0"),
        ({"clamp": float("nan")}, "clamp must be positive; got nan"),
    ],
)
def test_bad_arguments_name_the_argument(change: dict, message: str) -> None:
    good = {
        "x": mx.zeros((2, 64)),
        "ids": mx.zeros((2, 3), mx.int32),
        "weights": mx.zeros((2, 3)),
        "gate": mx.zeros((4, 32, 68), mx.uint8),
        "up": mx.zeros((4, 32, 68), mx.uint8),
        "down": mx.zeros((4, 64, 34), mx.uint8),
        "formats": ("q8_0", "q8_0", "q8_0"),
        "clamp": 10.0,
    }
    with pytest.raises(ValueError, match=message):
        ops.experts(**(good | change))


@pytest.mark.parametrize("name", ["gate", "up", "down"])
def test_weights_that_would_need_a_copy_are_refused(name: str, executor: str) -> None:
    case = Case(2, 4, 2, 64, 32, ("q8_0",) * 3)
    inputs = vars(make(case))
    arrays = {key: mx.array(value) for key, value in inputs.items()}
    arrays[name] = mx.repeat(arrays[name], 2, axis=0)[::2]
    out = ops.experts(**arrays, formats=case.formats, clamp=10.0)
    with pytest.raises(ValueError, match=f"{name} must be row-contiguous, it is never copied"):
        mx.eval(out)
