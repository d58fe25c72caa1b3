"""Router kernels against their reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, same_bits, strided, to_numpy
from mlx_dsv4 import ops, reference

SCALE = 1.5
VOCAB = 50


@dataclass(frozen=True)
class Case:
    n_tokens: int
    n_experts: int
    k: int

    def __str__(self) -> str:
        return f"T{self.n_tokens}-E{self.n_experts}-k{self.k}"


CASES = [
    Case(1, 1, 1),  # the only expert
    Case(1, 256, 6),  # V4-Flash, decode
    pytest.param(Case(40, 256, 6), marks=pytest.mark.realistic),  # more than one piece of work
    Case(7, 8, 8),  # every expert is chosen
    Case(3, 19, 16),  # the most a token may use, an odd number of experts
]


def make_logits(case: Case, seed: int = 0) -> mx.array:
    logits = 4 * np.random.default_rng(seed).standard_normal((case.n_tokens, case.n_experts))
    return mx.array(logits.astype(np.float32))


def make_bias(case: Case) -> mx.array:
    return mx.array(np.random.default_rng(1).standard_normal(case.n_experts).astype(np.float32))


def weight_bound(case: Case) -> float:
    """A score is right to 4 ulp (log1p, exp, add, sqrt); a weight adds a sum of k and a ratio."""
    return (2 * 4 + case.k + 3) * 2 * EPS * SCALE


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scored_matches_reference(case: Case, executor: str) -> None:
    logits, bias = make_logits(case), make_bias(case)
    ids, weights = ops.route_scored(logits, bias, k=case.k, scale=SCALE)
    mx.eval(ids, weights)
    expected_ids, expected_weights = reference.route_scored(
        np.array(logits), np.array(bias), k=case.k, scale=SCALE
    )
    np.testing.assert_array_equal(to_numpy(ids), expected_ids)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=weight_bound(case), rtol=0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hashed_matches_reference(case: Case, executor: str) -> None:
    rng = np.random.default_rng(2)
    table = rng.integers(0, case.n_experts, (VOCAB, case.k)).astype(np.int32)
    tokens = rng.integers(0, VOCAB, case.n_tokens).astype(np.int32)
    logits = make_logits(case)
    ids, weights = ops.route_hashed(logits, mx.array(tokens), mx.array(table), scale=SCALE)
    mx.eval(ids, weights)
    expected_ids, expected_weights = reference.route_hashed(
        np.array(logits), tokens, table, scale=SCALE
    )
    np.testing.assert_array_equal(to_numpy(ids), expected_ids)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=weight_bound(case), rtol=0)


def test_ties_go_to_the_lower_id_and_nan_is_last(executor: str) -> None:
    logits = mx.array([[1.0, 2.0, 1.0, 1.0], [np.nan, 0.0, np.nan, -1.0]])
    ids, _ = ops.route_scored(logits, mx.zeros(4), k=3, scale=1.0)
    assert ids.tolist() == [[1, 0, 2], [1, 3, 0]]
    for nan in (np.nan, -np.nan):
        bias = mx.array(np.array([0, 0, 0, nan], np.float32))
        ids, _ = ops.route_scored(logits[:1], bias, k=4, scale=1.0)
        assert ids.tolist() == [[1, 0, 2, 3]]


def test_infinite_logits_choose_and_extreme_ones_stay_finite(executor: str) -> None:
    logits = mx.array([[-200.0, -300.0, -np.inf]])
    ids, weights = ops.route_scored(logits, mx.array([0.0, 1.0, 2.0]), k=2, scale=1.0)
    assert ids.tolist() == [[2, 1]]
    assert np.isfinite(to_numpy(weights)).all()


def test_bias_chooses_but_does_not_weigh(executor: str) -> None:
    ids, weights = ops.route_scored(mx.zeros((1, 3)), mx.array([0.0, 5.0, 9.0]), k=2, scale=1.5)
    assert ids.tolist() == [[2, 1]]
    np.testing.assert_allclose(to_numpy(weights), [[0.75, 0.75]], rtol=1e-6)


def test_an_expert_named_twice_counts_twice(executor: str) -> None:
    table = mx.array([[3, 3]], dtype=mx.int32)
    ids, weights = ops.route_hashed(
        mx.ones((1, 4)), mx.array([0], dtype=mx.int32), table, scale=1.5
    )
    assert ids.tolist() == [[3, 3]]
    np.testing.assert_allclose(to_numpy(weights), [[0.75, 0.75]], rtol=1e-6)


def test_ids_outside_are_named_or_weigh_nan(executor: str) -> None:
    table = mx.array([[0, 1], [1, 4]], dtype=mx.int32)  # expert 4 of 4 does not exist
    logits = mx.ones((3, 4))
    for token in (-1, 2):
        tokens = mx.array([0, 0, token], dtype=mx.int32)
        with pytest.raises(ValueError, match=rf"tokens must be in 0\.\.1; got {token} at index 2"):
            ops.route_hashed(logits, tokens, table, scale=1.0)
        computing = tokens + mx.zeros(3, mx.int32)
        ids, weights = ops.route_hashed(logits, computing, table, scale=1.0)
        assert ids.tolist()[0] == [0, 1]
        assert np.isnan(to_numpy(weights)).tolist() == [[False] * 2, [False] * 2, [True] * 2]
    _, weights = ops.route_hashed(logits[:1], mx.array([1]), table, scale=1.0)
    assert np.isnan(to_numpy(weights)).all()


def test_a_token_does_not_depend_on_its_batch(executor: str) -> None:
    case = Case(40, 256, 6)
    logits, bias = make_logits(case), make_bias(case)
    together = ops.route_scored(logits, bias, k=case.k, scale=SCALE)
    for t in range(case.n_tokens):
        alone = ops.route_scored(logits[t : t + 1], bias, k=case.k, scale=SCALE)
        assert same_bits(alone[0], together[0][t : t + 1])
        assert same_bits(alone[1], together[1][t : t + 1])


def test_thread_orders_agree_to_the_bit(each_order: Callable[[], Iterator[str]]) -> None:
    case = Case(6, 256, 6)
    results = []
    for _ in each_order():
        results.append(ops.route_scored(make_logits(case), make_bias(case), k=6, scale=SCALE))
        mx.eval(results[-1])
    assert all(same_bits(r[1], results[0][1]) for r in results)


def test_instruction_sets_agree_to_the_bit(each_isa: list[str]) -> None:
    case = Case(40, 256, 6)
    results = []
    for _ in each_isa:
        results.append(ops.route_scored(make_logits(case), make_bias(case), k=6, scale=SCALE))
        mx.eval(results[-1])
    assert all(same_bits(r[1], results[0][1]) for r in results)


def test_strided_inputs_are_accepted() -> None:
    case = CASES[3]
    logits, bias = make_logits(case), make_bias(case)
    _, plain = ops.route_scored(logits, bias, k=case.k, scale=SCALE)
    _, views = ops.route_scored(strided(logits), strided(bias), k=case.k, scale=SCALE)
    assert same_bits(plain, views)


def test_no_tokens_give_no_rows() -> None:
    ids, weights = ops.route_scored(mx.zeros((0, 4)), mx.zeros(4), k=2, scale=1.0)
    assert ids.shape == weights.shape == (0, 2)
    mx.eval(ids, weights)


def test_reference_on_numbers_worked_by_hand() -> None:
    # softplus(0) = ln 2, so both scores are equal and each gets half of the scale.
    ids, weights = reference.route_scored(np.zeros((1, 2)), np.array([0.0, 0.1]), k=2, scale=1.5)
    assert ids.tolist() == [[1, 0]]
    np.testing.assert_allclose(weights, [[0.75, 0.75]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": mx.zeros(8)}, r"\[route_scored\] logits must be \[T, E\]; got \(8\)"),
        ({"logits": mx.zeros((1, 8), mx.bfloat16)}, r"logits must be float32; got bfloat16"),
        ({"bias": mx.zeros(7)}, r"bias must be \[E\] = \(8\); got \(7\)"),
        ({"k": 0}, r"k must be in 1\.\.8; got 0"),
        ({"k": 9}, r"k must be in 1\.\.8; got 9"),
    ],
)
def test_bad_arguments_name_the_argument(change: dict, message: str) -> None:
    good = {"logits": mx.zeros((1, 8)), "bias": mx.zeros(8), "k": 2, "scale": 1.0}
    with pytest.raises(ValueError, match=message):
        ops.route_scored(**(good | change))
