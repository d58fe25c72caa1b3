"""Attention of one token has the same bits in every batch, chunk, launch and order of threads."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from arrays import same_bits, to_numpy
from attention_cases import Case, expected_output, make_inputs, output_bound, split
from mlx_dsv4 import _ext, ops

V4_FLASH = Case(3, 64, 512, 2500, 4, k=512, dtype=mx.bfloat16)  # 640 rows


@pytest.fixture
def thread_counts() -> Iterator[tuple[int, ...]]:
    """Thread counts to compare; puts the usual one back afterwards."""
    usual = _ext.num_threads()
    yield (1, 2)
    _ext.set_num_threads(usual)


SIXTEEN_DIMS = Case(1, 3, 16, 21, 4, k=16, window=16, rope_dim=8, dtype=mx.bfloat16)


@pytest.mark.parametrize("n_tokens", [*range(1, 10), 15, 16, 17, 33])
def test_a_query_does_not_depend_on_its_batch(n_tokens: int, executor: str) -> None:
    case = replace(SIXTEEN_DIMS, n_tokens=n_tokens)
    for inputs in (make_inputs(case), make_inputs(replace(case, k=0, ratio=16))):
        assert same_bits(ops.attention(**inputs), split(inputs, [1] * n_tokens))


@pytest.mark.realistic
@pytest.mark.parametrize("n_tokens", [127, 128, 129, 300, 511, 512, 513])
def test_a_query_does_not_depend_on_its_chunk(n_tokens: int, executor: str) -> None:
    # Chunks on both sides of the length from which the GPU launches another kernel.
    inputs = make_inputs(replace(SIXTEEN_DIMS, n_tokens=n_tokens))
    assert same_bits(ops.attention(**inputs), split(inputs, [1, 15, 16, 17, n_tokens - 49]))


@pytest.mark.realistic
@pytest.mark.parametrize(
    ("start", "chunks"),
    [(0, [129, 129, 342]), (1, [256, 257, 87]), (130, [300, 127, 128, 45])],
)
def test_chunks_read_the_ring_before_it_is_written(
    start: int, chunks: list[int], executor: str
) -> None:
    inputs = make_inputs(Case(600, 2, 16, start, 128, rope_dim=8))
    whole = ops.attention(**inputs)
    assert same_bits(whole, split(inputs, chunks))
    expected = expected_output(inputs)
    assert (np.abs(to_numpy(whole) - expected) <= output_bound(inputs, expected)).all()


@pytest.mark.parametrize("n_tokens", [3, 4, 5, 7, 8, 9, 17])
@pytest.mark.parametrize("k", [0, 5])
def test_every_phase_of_ring_and_spans_matches_reference(
    n_tokens: int, k: int, executor: str
) -> None:
    for start in (0, 1, 3, 4, 6, 7, 8, 9, 15, 18):
        inputs = make_inputs(Case(n_tokens, 3, 16, start, 4, k=k, window=8, rope_dim=8))
        expected = expected_output(inputs)
        out = to_numpy(ops.attention(**inputs))
        assert (np.abs(out - expected) <= output_bound(inputs, expected)).all(), start


@pytest.mark.parametrize("n_rows", [*range(1, 10), 15, 16, 17, 127, 128, 129, 511, 512, 513])
def test_lists_of_every_length_match_reference(n_rows: int, executor: str) -> None:
    case = Case(2, 9, 16, 4 * n_rows - 2, 4, window=8, rope_dim=8, dtype=mx.bfloat16)
    for inputs in (make_inputs(case), make_inputs(replace(case, k=n_rows))):
        expected = expected_output(inputs)
        out = to_numpy(ops.attention(**inputs))
        assert (np.abs(out - expected) <= output_bound(inputs, expected)).all()


@pytest.mark.parametrize("case", [V4_FLASH, Case(9, 8, 192, 130, 4, k=16)], ids=str)
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


def test_thread_orders_and_launches_agree_to_the_bit(
    each_order: Callable[[], Iterator[str]],
) -> None:
    inputs = make_inputs(replace(V4_FLASH, n_tokens=16))
    few = {name: inputs[name][:3] for name in ("q", "rows", "rotation", "selected")}
    results = []
    for _ in each_order():
        results.append((ops.attention(**inputs), ops.attention(**(inputs | few))))
        mx.eval(results[-1])
    for whole, first in results:
        assert same_bits(whole, results[0][0])
        assert same_bits(first, results[0][0][:3])
    expected = expected_output(inputs)
    assert (np.abs(to_numpy(results[0][0]) - expected) <= output_bound(inputs, expected)).all()
