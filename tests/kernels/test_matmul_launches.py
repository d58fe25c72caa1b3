"""Tiles, tails and starts of the packed products, where the simulated GPU cuts its work."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from arrays import same_bits, shifted, to_numpy
from blocks import product_bound
from mlx_dsv4 import ops, reference
from mlx_dsv4.gguf.random_rows import random_rows


@dataclass(frozen=True)
class Case:
    n_tokens: int
    n_rows: int
    k: int
    format: str
    groups: int = 1

    def __str__(self) -> str:
        return f"T{self.n_tokens}-N{self.n_rows}-K{self.k}-g{self.groups}-{self.format}"

    def x(self) -> np.ndarray:
        shape = (self.n_tokens, self.groups * self.k)
        return np.random.default_rng(1).standard_normal(shape).astype(np.float32)

    def weight(self) -> np.ndarray:
        return random_rows((self.n_rows, self.k), self.format)


# Rows and tokens around a fragment, a tile and a threadgroup; k around a block and a segment.
RAGGED = [
    Case(8, 8, 512, "q8_0"),
    Case(9, 15, 480, "q8_0"),
    Case(32, 16, 544, "mxfp4"),
    Case(33, 17, 1024, "q8_0"),
    Case(8, 129, 64, "mxfp4"),
    Case(16, 129, 32, "q8_0"),
    Case(4, 31, 511, "f16"),
    Case(9, 33, 513, "f32"),
    Case(31, 32, 1023, "f16"),
    Case(1, 7, 1025, "f32"),
    Case(9, 5, 3, "bf16"),
    Case(9, 320, 64, "mxfp4", groups=320),  # enough threadgroups that none shares a tile
]
# V4-Flash: queries of a token, a verify batch, a chunk; the output products of eight heads.
REALISTIC = [
    Case(1, 256, 4096, "q8_0"),
    Case(8, 64, 4096, "q8_0"),
    Case(40, 160, 4096, "q8_0"),
    Case(9, 320 * 65, 544, "q8_0", groups=320),  # the same: three tiles, two segments
]


def run(case: Case, x: mx.array | None = None) -> mx.array:
    x = mx.array(case.x()) if x is None else x
    out = ops.matmul(x, mx.array(case.weight()), format=case.format, groups=case.groups)
    mx.eval(out)
    return out


def check(case: Case) -> mx.array:
    out = run(case)
    x, weight = case.x(), case.weight()
    largest = np.abs(x).reshape(case.n_tokens, case.groups, case.k).max(1)  # of the groups
    bounds = product_bound(largest, reference.dequantize(weight, case.format))
    expected = reference.matmul(x, weight, format=case.format, groups=case.groups)
    assert (np.abs(to_numpy(out) - expected) <= bounds).all()
    return out


@pytest.mark.parametrize("case", RAGGED, ids=str)
def test_ragged_shapes_match_reference(case: Case, executor: str) -> None:
    check(case)


@pytest.mark.realistic
@pytest.mark.parametrize("case", REALISTIC, ids=str)
def test_realistic_shapes_match_reference(case: Case, executor: str) -> None:
    out = check(case)
    alone = run(case, mx.array(case.x()[-1:]))
    assert same_bits(out[-1:], alone)


@pytest.mark.parametrize("case", REALISTIC[:3], ids=str)
def test_orders_of_threads_change_no_bit(
    case: Case, each_order: Callable[[], Iterator[str]]
) -> None:
    results = [run(case) for _ in each_order()]
    assert all(same_bits(r, results[0]) for r in results)


@pytest.mark.parametrize("n_tokens", [1, 9])
@pytest.mark.parametrize(("format", "start"), [("f32", 4), ("f16", 2), ("q8_0", 2), ("mxfp4", 1)])
def test_inputs_may_begin_at_any_element(
    format: str, start: int, n_tokens: int, executor: str
) -> None:
    case = Case(n_tokens, 9, 64, format)
    weight = shifted(mx.array(case.weight()), start)
    out = ops.matmul(shifted(mx.array(case.x())), weight, format=format)
    assert same_bits(out, run(case))
    tokens = np.array([8, 0, 3], np.int32)
    rows = ops.embed(shifted(mx.array(tokens)), weight, format=format)
    expected = reference.embed(tokens, case.weight(), format=format)
    np.testing.assert_array_equal(np.array(rows), expected)


@pytest.mark.parametrize(("format", "start"), [("f32", 2), ("f16", 1), ("bf16", 3), ("q8_0", 1)])
def test_weights_that_a_gpu_cannot_load_are_refused(
    format: str, start: int, simulator: str
) -> None:
    case = Case(1, 9, 64, format)
    weight = shifted(mx.array(case.weight()), start)
    message = rf"weight must begin at a multiple of [24] bytes of its buffer; got byte {start}"
    with pytest.raises(ValueError, match=message):
        mx.eval(ops.matmul(mx.array(case.x()), weight, format=format))
    with pytest.raises(ValueError, match=message):
        mx.eval(ops.embed(mx.zeros(1, mx.int32), weight, format=format))
