"""Snapshots of a model's cache: going on from one equals never having stopped, to the bit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache as memoised
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest

from cache_contents import readable, stream_tokens
from mlx_dsv4 import ops
from mlx_dsv4.cache import Cache
from mlx_dsv4.errors import CacheStateError
from mlx_dsv4.model import Model, Numerics
from tiny_models import tiny_model

pytestmark = pytest.mark.usefixtures("nan_in_new_buffers")

TINY = tiny_model(ratios=(0, 4, 128), hash_layers=1)
LAYERS = TINY.config.layers
# From here on the indexer has more rows than it selects.
LIMIT = TINY.config.top_k * 4
CAPACITY = 530
# Around the ends of spans, of the ring, and the first rows that are not all selected.
POSITIONS = [3, 4, 5, 7, 8, 9, LIMIT - 1, LIMIT, LIMIT + 3, LIMIT + 4, LIMIT + 5]
POSITIONS += [127, 128, 129, 130, 255, 256, 257, 383, 384, 385, 511, 512, 513]
FURTHER = 9


@pytest.fixture(params=["official", "plain"])
def numerics(request: pytest.FixtureRequest) -> Numerics:
    return request.param


@memoised
def load(numerics: Numerics) -> Model:
    return TINY.load(numerics)


@pytest.fixture
def model(numerics: Numerics) -> Model:
    return load(numerics)


Answer = tuple[np.ndarray, np.ndarray, list[bytes]]


def answer(model: Model, states: mx.array, cache: Cache) -> Answer:
    """Hidden states, their logits, and what the cache holds."""
    return np.array(states), np.array(model.logits(states)), readable(cache)


@memoised
def never_stopped(numerics: Numerics, tokens: tuple[int, ...], last: int) -> Answer:
    """The answer for the last tokens, decoded one by one in a cache that read nothing else."""
    model = load(numerics)
    cache = model.make_cache(CAPACITY)
    model.prefill(tokens[:-last], cache)
    states = [model.step(token, cache) for token in tokens[-last:]]
    return answer(model, mx.concatenate(states), cache)


def assert_equal(found: Answer, expected: Answer) -> None:
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert found[2] == expected[2]


def decode(model: Model, tokens: Sequence[int], cache: Cache) -> mx.array:
    return mx.concatenate([model.step(token, cache) for token in tokens])


@pytest.mark.parametrize("other", [False, True], ids=["same tokens", "others"])
@pytest.mark.parametrize("position", POSITIONS)
def test_going_on_equals_never_having_stopped(
    model: Model, numerics: Numerics, position: int, other: bool
) -> None:
    cache = model.make_cache(CAPACITY)
    tokens = stream_tokens(0, 0, position + FURTHER)
    model.prefill(tokens[:position], cache)
    snapshot = cache.snapshot()
    model.prefill(stream_tokens(1 - other, position, CAPACITY), cache)
    cache.restore(snapshot)
    tokens[position:] = stream_tokens(int(other), position, position + FURTHER)
    states = model.prefill(tokens[position:], cache)
    expected = never_stopped(numerics, tuple(tokens), FURTHER)
    assert_equal(answer(model, states, cache), expected)
    cache.restore(snapshot)
    states = decode(model, tokens[position:], cache)
    assert_equal(answer(model, states, cache), expected)


def test_a_restore_does_not_meet_a_step_in_flight(model: Model, numerics: Numerics) -> None:
    """A step returns before its result is there, and reads the ring until it is."""
    tokens = stream_tokens(0, 0, 201)
    cache = model.make_cache(CAPACITY)
    model.prefill(tokens[:100], cache)
    early = cache.snapshot()
    model.prefill(tokens[100:200], cache)
    late = cache.snapshot()
    expected = never_stopped(numerics, tuple(tokens), 1)
    for _ in range(10):
        cache.restore(late)
        state = model.step(tokens[200], cache)
        cache.restore(early)
        np.testing.assert_array_equal(np.array(state), expected[0])


# Every place in a span of 4, before and after the ring fills and a span of 128 closes.
STARTS = [64, 65, 66, 67, 126, 127, 128, 129]
MOST = 8


@pytest.mark.parametrize("start", STARTS)
def test_verified_tokens_that_are_taken_back_leave_no_trace(
    model: Model, numerics: Numerics, start: int
) -> None:
    """Reads k tokens, accepts a of them, takes all back, replays those, decodes others."""
    tokens = stream_tokens(0, 0, start + MOST)
    cache = model.make_cache(start + MOST + FURTHER)
    model.prefill(tokens[:start], cache)
    before = cache.snapshot()
    for k in range(1, MOST + 1):
        for accepted in range(k + 1):
            end = start + accepted
            others = stream_tokens(1, end, end + 5)
            model.prefill(tokens[start : start + k], cache)
            cache.restore(before)
            if accepted:
                model.prefill(tokens[start:end], cache)
            found = answer(model, decode(model, others, cache), cache)
            assert_equal(found, never_stopped(numerics, (*tokens[:end], *others), 5))
            cache.restore(before)


@contextmanager
def failing_after(sublayers: int, written: Cache | None = None) -> Iterator[None]:
    """An exception at the end of a sublayer: two sublayers a layer, each ends in this op.

    What that far was to be ``written`` into a cache is there by then.
    """
    real, done = ops.hyper_post, 0

    def post(*args: mx.array) -> mx.array:
        nonlocal done
        if done == sublayers:
            mx.eval(written.handles() if written else [])
            raise MemoryError("injected")
        done += 1
        return real(*args)

    with patch.object(ops, "hyper_post", post), pytest.raises(MemoryError, match="injected"):
        yield
    assert done == sublayers


@pytest.mark.parametrize("by", ["prefill", "step"])
@pytest.mark.parametrize("written", [False, True], ids=["planned", "written"])
@pytest.mark.parametrize("sublayers", range(2 * LAYERS))
def test_a_failure_between_layers_is_taken_back(
    model: Model, numerics: Numerics, sublayers: int, written: bool, by: str
) -> None:
    tokens = stream_tokens(0, 0, 140)
    expected = never_stopped(numerics, tuple(tokens), 13)
    cache = model.make_cache(CAPACITY)
    model.prefill(tokens[:127], cache)
    snapshot = cache.snapshot()
    model.prefill(tokens[127:130], cache)
    with failing_after(sublayers, cache if written else None):
        if by == "prefill":
            model.prefill(stream_tokens(1, 130, 270), cache)
        else:
            model.step(5, cache)
    assert (cache.position, cache.poisoned) == (130, True)
    for call in (cache.snapshot, lambda: model.step(5, cache)):
        with pytest.raises(CacheStateError, match=r"poisoned .*injected"):
            call()
    cache.restore(snapshot)
    assert_equal(answer(model, model.prefill(tokens[127:], cache), cache), expected)
    with failing_after(sublayers, cache if written else None):
        model.step(5, cache)
    cache.reset()
    states = model.prefill(tokens, cache)[127:]
    assert_equal(answer(model, states, cache), expected)
