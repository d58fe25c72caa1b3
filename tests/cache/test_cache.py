"""The cache protocol: plan, work, commit, poison, reset."""

import copy
import pickle

import mlx.core as mx
import numpy as np
import pytest

from mlx_dsv4.cache import Cache, plan_cache
from mlx_dsv4.cache.buffers import Buffers
from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.errors import AllocationError, CacheStateError, PlanError, SnapshotError
from mlx_dsv4.gguf.tiny import tiny_config

CONFIG = tiny_config()


@pytest.fixture
def cache() -> Cache:
    return Cache(plan_cache(CONFIG, 300))


def test_held_bytes_are_the_planned_bytes() -> None:
    for capacity_tokens in (1, 3, 4, 127, 128, 129, 1000):
        plan = plan_cache(CONFIG, capacity_tokens)
        assert Cache(plan).held_bytes() == plan.n_bytes


def test_a_mismatch_of_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Buffers, "held_bytes", lambda self: 1)
    with pytest.raises(PlanError, match=r"planned \d+ bytes of cache, allocated 1"):
        Cache(plan_cache(CONFIG, 10))


def test_too_little_memory_is_refused_before_allocating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_dsv4.cache.buffers.available_bytes", lambda: 1000)
    with pytest.raises(AllocationError, match=r"needs 7232045056 bytes; 1000 are available"):
        Cache(plan_cache(V4_FLASH, 1_048_576))


def test_a_step_moves_the_cursor_when_it_is_done(cache: Cache) -> None:
    with cache.step(5) as step:
        assert (step.start, step.n_tokens, cache.position) == (0, 5, 0)
    assert cache.position == 5
    assert cache.plan_step(3).spans[4].compressed_start == 1


def test_states_begin_empty(cache: Cache) -> None:
    value, score = cache.layers[2].compressor
    assert np.array(value).any() == 0
    assert np.isneginf(np.array(score)).all()


def test_a_failure_poisons_until_reset(cache: Cache) -> None:
    with cache.step(3):
        pass
    with pytest.raises(ZeroDivisionError), cache.step(2):
        raise ZeroDivisionError("layer 3")
    assert cache.poisoned
    assert cache.position == 3
    for call in (lambda: cache.plan_step(1), lambda: cache.commit(3, 1)):
        with pytest.raises(CacheStateError, match=r"poisoned .*ZeroDivisionError.*layer 3.*reset"):
            call()
    cache.reset()
    assert (cache.position, cache.poisoned) == (0, False)
    with cache.step(1):
        pass


def test_reset_empties_the_states(cache: Cache) -> None:
    layer = cache.layers[3]
    layer.compressor = (mx.ones_like(layer.compressor[0]), mx.ones_like(layer.compressor[1]))
    cache.reset()
    value, score = cache.layers[3].compressor
    assert np.array(value).any() == 0
    assert np.isneginf(np.array(score)).all()


@pytest.mark.parametrize(
    ("start", "n_tokens", "message"),
    [
        (1, 1, "must start at the cursor 0; got 1"),
        (0, 0, r"must end in 1\.\.300; got 0"),
        (0, 301, r"must end in 1\.\.300; got 301"),
    ],
)
def test_a_wrong_commit_is_refused(cache: Cache, start: int, n_tokens: int, message: str) -> None:
    with pytest.raises(CacheStateError, match=message):
        cache.commit(start, n_tokens)
    assert cache.position == 0


def test_a_step_past_the_capacity_changes_nothing(cache: Cache) -> None:
    with cache.step(299):
        pass
    with (
        pytest.raises(CacheStateError, match="2 tokens at position 299 reach past"),
        cache.step(2),
    ):
        pytest.fail("the body must not run")
    assert (cache.position, cache.poisoned) == (299, False)


def test_two_caches_are_independent() -> None:
    first, second = (Cache(plan_cache(CONFIG, 50)) for _ in range(2))
    with first.step(10):
        pass
    second.poison("test")
    assert (first.position, first.poisoned, second.position) == (10, False, 0)


def test_whatever_strikes_within_a_call_poisons(cache: Cache) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), cache.step(3):
        raise Unprintable
    assert (cache.position, cache.poisoned) == (0, True)
    cache.reset()
    with pytest.raises(CacheStateError, match="poisoned"), cache.step(3):
        cache.plan_step(1)
    cache.reset()
    for change in (cache.reset, lambda: cache.poison("test")):
        with pytest.raises(CacheStateError, match="while a call runs"), cache.step(3):
            change()
        assert cache.poisoned
        cache.reset()
    with cache.step(3):
        assert cache.poisoned
    assert (cache.position, cache.poisoned) == (3, False)


def test_an_interrupted_commit_poisons(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with cache.step(130):
        pass
    before = cache.snapshot()
    for place in ("Timeline.append", "Timeline.cut"):
        with monkeypatch.context() as patch:
            patch.setattr(f"mlx_dsv4.cache.timeline.{place}", interrupt)
            with pytest.raises(KeyboardInterrupt), cache.step(3):
                pass
        assert cache.poisoned
        cache.restore(before)
        assert (cache.position, cache.poisoned) == (130, False)


@pytest.mark.parametrize("tokens", [1.5, float("nan"), "1", None])
def test_a_step_of_no_whole_number_of_tokens_is_refused(cache: Cache, tokens: object) -> None:
    with (
        pytest.raises(CacheStateError, match="a step needs a whole number of tokens; got"),
        cache.step(tokens),
    ):
        pytest.fail("the body must not run")
    assert (cache.position, cache.poisoned) == (0, False)


@pytest.mark.parametrize("capacity", [1.5, "9", None, float("nan")])
def test_a_capacity_that_is_no_integer_is_refused(cache: Cache, capacity: object) -> None:
    for make in (lambda: plan_cache(CONFIG, capacity), lambda: cache.grow(capacity)):
        with pytest.raises(PlanError, match="context must be an integer; got"):
            make()


def test_copies_are_refused(cache: Cache) -> None:
    snapshot = cache.snapshot()
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(CacheStateError, match="cannot be copied: branch from a snapshot"):
            make(cache)
    with pytest.raises(SnapshotError, match="save the cache to a file"):
        pickle.dumps(snapshot)
    assert copy.deepcopy(snapshot) is snapshot
    with pytest.raises(ValueError, match="WRITEABLE"):
        snapshot.data.flags.writeable = True
    for wrong in (None, "snapshot", 3):
        with pytest.raises(SnapshotError, match="a Snapshot is needed; got"):
            cache.restore(wrong)
