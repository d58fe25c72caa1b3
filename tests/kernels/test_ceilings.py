"""The loops that measure what the CPU can do at most: they do what they say, and all of it."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from mlx_dsv4 import _ext, ops


@pytest.fixture(params=_ext.available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("n_words", [64, 448, 2**20 + 64])
def test_every_word_is_read(isa: str, n_words: int) -> None:
    words = np.random.default_rng(0).integers(0, 2**32, n_words, np.uint32)
    best = _ext.isa()
    _ext.set_isa(isa)
    try:
        assert ops.read_all(mx.array(words)) == int(words.sum(dtype=np.uint32))
    finally:
        _ext.set_isa(best)


@pytest.mark.parametrize("count", [ops.multiply_adds, ops.widened_multiply_adds])
def test_multiply_adds_grow_with_rounds_and_threads(count: Callable[[int], int]) -> None:
    one = count(1)
    assert one % _ext.num_threads() == 0
    assert count(17) == 17 * one


@pytest.mark.parametrize(
    "words",
    [mx.zeros(64), mx.zeros(63, mx.uint32), mx.zeros((64, 2), mx.uint32)[:, 0]],
    ids=["float32", "63 words", "strided"],
)
def test_what_cannot_be_read_is_refused(words: mx.array) -> None:
    mx.eval(words)
    with pytest.raises(ValueError, match=r"\[read_all\] words must be"):
        ops.read_all(words)


@pytest.mark.parametrize("count", [ops.multiply_adds, ops.widened_multiply_adds])
def test_rounds_below_one_are_refused(count: Callable[[int], int]) -> None:
    with pytest.raises(ValueError, match=rf"\[{count.__name__}\] rounds must be at least 1; got 0"):
        count(0)
