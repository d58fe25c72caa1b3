"""What a model refuses, and that a refusal or a failure never leaves a wrong answer behind."""

from threading import Thread

import mlx.core as mx
import numpy as np
import pytest

from mlx_dsv4 import ops
from mlx_dsv4.cache import Cache
from mlx_dsv4.errors import CacheStateError, PromptError, UnsupportedModelError
from mlx_dsv4.model import Model
from tiny_models import random_tokens, tiny_model

TINY = tiny_model()


@pytest.fixture(scope="module")
def model() -> Model:
    return TINY.load("official")


@pytest.fixture
def cache(model: Model) -> Cache:
    return model.make_cache(200)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "at least one token is needed; got none"),
        ([5, 1024], r"token ids must be in 0\.\.1023; got 1024 at index 1"),
        ([1.5], r"token ids must be integers; got 1\.5 at index 0"),
        ([5, True], r"token ids must be integers; got True at index 1"),
        (b"abc", "token ids are needed, not text"),
        ({5, 6}, r"a prompt must be a sequence of token ids; got \{5, 6\}"),
        ({5: 6}, r"a prompt must be a sequence of token ids; got \{5: 6\}"),
        ("ab", "token ids are needed, not text"),
        ([-1], r"token ids must be in 0\.\.1023; got -1 at index 0"),
    ],
)
def test_bad_tokens_are_refused(
    model: Model, cache: Cache, tokens: list[int], message: str
) -> None:
    with pytest.raises(PromptError, match=message):
        model.prefill(tokens, cache)
    assert (cache.position, cache.poisoned) == (0, False)


def test_more_tokens_than_the_cache_holds_are_refused(model: Model, cache: Cache) -> None:
    model.prefill(random_tokens(TINY.config, 150), cache)
    with pytest.raises(CacheStateError, match="51 tokens at position 150 reach past"):
        model.prefill(random_tokens(TINY.config, 51), cache)
    assert (cache.position, cache.poisoned) == (150, False)


def test_unknown_numerics_are_refused() -> None:
    with pytest.raises(ValueError, match="numerics must be official or plain; got exact"):
        TINY.load("exact")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"head_dim": 80}, r"head_dim must be a multiple of 64 above rope_dim .*; got 80"),
        ({"head_dim": 136}, r"head_dim must be a multiple of 16; got 136"),
        ({"indexer_dim": 96}, r"indexer_dim must be a power of two from 32 on .*; got 96"),
        ({"streams": 9}, r"streams must be at most 8; got 9"),
        ({"hidden": 136}, r"hidden must be a multiple of 16; got 136"),
        ({"experts": 40, "experts_used": 17}, r"experts_used must be at most 16; got 17"),
        ({"window": 64}, r"window must be 128; got 64"),
        ({"sinkhorn_iterations": 2**31}, r"sinkhorn_iterations must be at most 10000; got"),
    ],
)
def test_numbers_that_no_kernel_serves_are_refused_at_load(overrides: dict, message: str) -> None:
    tiny = tiny_model(**{"ratios": (4,), "hash_layers": 1, **overrides})
    with pytest.raises(UnsupportedModelError, match=message):
        tiny.load("official")


def test_plain_numerics_needs_less_of_the_dims() -> None:
    tiny = tiny_model(ratios=(4,), hash_layers=1, head_dim=80, indexer_dim=96)
    model = tiny.load("plain")
    model.prefill([1, 2, 3, 4, 5], model.make_cache(8))


def test_reset_after_a_failure_in_another_thread(
    model: Model, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = random_tokens(TINY.config, 20)
    expected = np.array(model.prefill(tokens, cache))
    cache.reset()

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("injected")

    def half_a_step() -> None:
        model.prefill(tokens[:7], cache)
        monkeypatch.setattr(ops, "hyper_post", fail)
        with pytest.raises(MemoryError, match="injected"):
            model.prefill(tokens[7:], cache)
        monkeypatch.undo()

    thread = Thread(target=half_a_step)
    thread.start()
    thread.join()
    assert cache.poisoned
    cache.reset()
    np.testing.assert_array_equal(np.array(model.prefill(tokens, cache)), expected)


@pytest.mark.parametrize("failing", ["hyper_post", "experts", "attention", "window_write"])
def test_a_failure_between_layers_poisons_and_reset_recovers(
    model: Model, cache: Cache, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    tokens = random_tokens(TINY.config, 20)
    expected = np.array(model.prefill(tokens, cache))
    calls = 0
    real = getattr(ops, failing)

    def fail_in_the_third_layer(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise MemoryError("injected")
        return real(*args, **kwargs)

    monkeypatch.setattr(ops, failing, fail_in_the_third_layer)
    with pytest.raises(MemoryError, match="injected"):
        model.prefill(tokens, cache)
    monkeypatch.undo()
    assert cache.poisoned
    with pytest.raises(CacheStateError, match="injected"):
        model.prefill(tokens, cache)
    cache.reset()
    np.testing.assert_array_equal(np.array(model.prefill(tokens, cache)), expected)


def test_a_token_may_be_any_integer_array_of_one(model: Model, cache: Cache) -> None:
    kinds = [5, np.int64(5), mx.array(5), mx.array([5], mx.uint32), mx.argmax(mx.arange(6))]
    states = []
    for token in kinds:
        cache.reset()
        states.append(np.array(model.step(token, cache)))
    assert all((state == states[0]).all() for state in states)


@pytest.mark.parametrize("token", [mx.array([1, 2]), mx.array(1.0), mx.zeros((0,), mx.int32)])
def test_another_array_is_refused(model: Model, cache: Cache, token: mx.array) -> None:
    with pytest.raises(PromptError, match="a token must be an array of one integer; got"):
        model.step(token, cache)
    assert (cache.position, cache.poisoned) == (0, False)


def test_a_known_token_outside_the_vocabulary_is_refused(model: Model, cache: Cache) -> None:
    with pytest.raises(ValueError, match=r"tokens must be in 0\.\.1023; got 5000 at index 0"):
        model.step(mx.array([5000], mx.int32), cache)
    assert (cache.position, cache.poisoned) == (0, False)


def test_a_token_that_turns_out_wrong_harms_its_own_session_alone(
    model: Model, cache: Cache
) -> None:
    other = model.make_cache(200)
    tokens = random_tokens(TINY.config, 9)
    expected = np.array(model.prefill(tokens, other))
    other.reset()
    token = mx.array(4999, mx.int32) + mx.array(1, mx.int32)  # not computed yet
    state = model.step(token, cache)
    np.testing.assert_array_equal(np.array(model.prefill(tokens, other)), expected)
    assert np.isnan(np.array(model.logits(state))).all()
    cache.reset()
    np.testing.assert_array_equal(np.array(model.prefill(tokens, cache)), expected)
