"""Queries of attention and indexer: every head of every token is a row of its own."""

from collections.abc import Callable, Iterator

import mlx.core as mx
import numpy as np
import pytest

from arrays import same_bits, shifted, strided, to_numpy
from mlx_dsv4 import ops, reference

Make = Callable[..., mx.array]
ROPE_DIM = 16


def attention_queries(q: mx.array, rotation: mx.array, heads: int) -> mx.array:
    return ops.attention_queries(q, rotation, heads=heads, eps=1e-6, dtype=mx.bfloat16)


def indexer_queries(q: mx.array, rotation: mx.array, heads: int) -> mx.array:
    return ops.indexer_queries(
        q, rotation, heads=heads, round_trip="hadamard_fp4", dtype=mx.bfloat16
    )


each_family = pytest.mark.parametrize("make", [attention_queries, indexer_queries])


def make_inputs(n_tokens: int, heads: int, dim: int = 128) -> tuple[mx.array, mx.array]:
    q = np.random.default_rng(0).standard_normal((n_tokens, heads * dim)).astype(np.float32)
    frequencies = reference.inverse_frequencies(ROPE_DIM, 1e4)
    rotation = reference.rotation_table(70_000 + np.arange(n_tokens), frequencies)
    return mx.array(q), mx.array(rotation)


@each_family
@pytest.mark.parametrize("heads", [1, 4, 5])
def test_a_head_does_not_depend_on_its_batch(make: Make, heads: int, executor: str) -> None:
    q, rotation = make_inputs(3, heads)
    together = make(q, rotation, heads)
    for t in range(3):
        for h in range(heads):
            one = q[t : t + 1, 128 * h : 128 * (h + 1)]
            alone = make(one, rotation[t : t + 1], 1)
            assert same_bits(alone[0, 0], together[t, h])


@each_family
def test_nan_stays_in_its_head(make: Make, executor: str) -> None:
    q, rotation = make_inputs(3, 5)
    clean = make(q, rotation, 5)
    poisoned = to_numpy(q)
    poisoned[1, 128 * 3 + 7] = np.nan
    out = make(mx.array(poisoned.astype(np.float32)), rotation, 5)
    assert np.argwhere(np.isnan(to_numpy(out)).all(-1)).tolist() == [[1, 3]]
    others = ~np.isnan(to_numpy(out)).any(-1)
    np.testing.assert_array_equal(to_numpy(out)[others], to_numpy(clean)[others])
    assert others.sum() == 14


@each_family
def test_inputs_may_be_views(make: Make, executor: str) -> None:
    q, rotation = make_inputs(2, 5, 32)
    plain = make(q, rotation, 5)
    assert same_bits(plain, make(strided(q), strided(rotation), 5))
    assert same_bits(plain, make(shifted(q), shifted(rotation), 5))


@each_family
def test_without_a_tail_nothing_rotates(make: Make, executor: str) -> None:
    q, _ = make_inputs(2, 3)
    angle_0 = mx.array(np.tile(np.float32([1, 0]), (2, 8, 1)))
    assert same_bits(make(q, mx.zeros((2, 0, 2)), 3), make(q, angle_0, 3))


@each_family
def test_no_tokens_give_no_queries(make: Make, executor: str) -> None:
    out = make(*make_inputs(0, 3), 3)
    mx.eval(out)
    assert out.shape == (0, 3, 128)


@pytest.mark.parametrize(("make", "dim"), [(attention_queries, 512), (indexer_queries, 128)])
def test_thread_orders_agree_to_the_bit(
    make: Make, dim: int, each_order: Callable[[], Iterator[str]]
) -> None:
    inputs, results = make_inputs(9, 64, dim), []
    for _ in each_order():
        results.append(make(*inputs, 64))
        mx.eval(results[-1])
    assert all(same_bits(out, results[0]) for out in results)


@each_family
def test_heads_that_a_simdgroup_cannot_hold_are_refused(make: Make, simulator: str) -> None:
    with pytest.raises(RuntimeError, match=r"_queries\] D must be at most 2048 on the GPU"):
        mx.eval(make(*make_inputs(1, 1, 4096), 1))
