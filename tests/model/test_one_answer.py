"""One prompt gives one answer, to the bit: however it is chunked, repeated or interleaved."""

from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_contents import readable
from mlx_dsv4.cache import Cache
from mlx_dsv4.gguf.tiny import Formats
from mlx_dsv4.model import Model, Numerics
from tiny_models import TinyModel, demo_model, demo_tokens, random_tokens, tiny_model

TOKENS = 300
CAPACITY = 400
PACKED = Formats("q8_0", "mxfp4", "bf16", "q8_0", "f16")


@pytest.fixture(scope="module", params=["official", "plain"])
def numerics(request: pytest.FixtureRequest) -> Numerics:
    return request.param


@pytest.fixture(scope="module", params=["random", "trained"])
def tiny(request: pytest.FixtureRequest) -> TinyModel:
    return demo_model() if request.param == "trained" else tiny_model(formats=PACKED)


@pytest.fixture(scope="module")
def model(tiny: TinyModel, numerics: Numerics) -> Model:
    return tiny.load(numerics)


@pytest.fixture(scope="module")
def prompt(tiny: TinyModel) -> list[int]:
    return demo_tokens(TOKENS) if tiny is demo_model() else random_tokens(tiny.config, TOKENS)


def run(model: Model, prompt: list[int], chunks: list[int]) -> tuple[np.ndarray, Cache]:
    """Hidden states of all tokens, read in ``chunks``, and the cache afterwards."""
    cache = model.make_cache(CAPACITY)
    states, start = [], 0
    for size in chunks:
        states.append(model.prefill(prompt[start : start + size], cache))
        start += size
    assert start == len(prompt)
    return np.array(mx.concatenate(states)), cache


def cut(total: int, size: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]


@pytest.fixture(scope="module")
def at_once(model: Model, prompt: list[int]) -> tuple[np.ndarray, Cache]:
    return run(model, prompt, [TOKENS])


@pytest.mark.parametrize("size", [1, 3, 7, 8, 127, 128, 129])
def test_chunks_of_one_size(
    model: Model, prompt: list[int], at_once: tuple[np.ndarray, Cache], size: int
) -> None:
    states, cache = run(model, prompt, cut(TOKENS, size))
    np.testing.assert_array_equal(states, at_once[0])
    assert readable(cache) == readable(at_once[1])


@settings(max_examples=10, deadline=None)
@given(cuts=st.sets(st.integers(1, TOKENS - 1), max_size=8))
def test_any_chunks(
    model: Model, prompt: list[int], at_once: tuple[np.ndarray, Cache], cuts: set[int]
) -> None:
    edges = [0, *sorted(cuts), TOKENS]
    chunks = [b - a for a, b in pairwise(edges)]
    states, cache = run(model, prompt, chunks)
    np.testing.assert_array_equal(states, at_once[0])
    assert readable(cache) == readable(at_once[1])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 127, 128, 129, 130, 255, 256, 257])
def test_a_prefix_is_read_as_part_of_the_whole(
    model: Model, prompt: list[int], at_once: tuple[np.ndarray, Cache], n: int
) -> None:
    states, _ = run(model, prompt[:n], [n])
    np.testing.assert_array_equal(states, at_once[0][:n])


def test_steps_equal_a_prefill(
    model: Model, prompt: list[int], at_once: tuple[np.ndarray, Cache]
) -> None:
    cache = model.make_cache(CAPACITY)
    states = [model.step(mx.array(token, mx.int32), cache) for token in prompt]
    np.testing.assert_array_equal(np.array(mx.concatenate(states)), at_once[0])
    last = model.logits(states[-1])
    np.testing.assert_array_equal(np.array(last), np.array(model.logits(mx.array(at_once[0])))[-1:])


def test_the_same_prompt_three_times_in_one_cache(
    model: Model, prompt: list[int], at_once: tuple[np.ndarray, Cache]
) -> None:
    cache = model.make_cache(CAPACITY)
    for _ in range(3):
        cache.reset()
        np.testing.assert_array_equal(np.array(model.prefill(prompt, cache)), at_once[0])


def test_two_sessions_stepped_in_turn(model: Model, tiny: TinyModel) -> None:
    prompts = [random_tokens(tiny.config, 140, seed) for seed in (1, 2)]
    alone = [run(model, prompt, [140])[0] for prompt in prompts]
    caches = [model.make_cache(CAPACITY) for _ in prompts]
    states: list[list[mx.array]] = [[], []]
    sizes = [1, 5, 130, 4]
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        for prompt, cache, seen in zip(prompts, caches, states, strict=True):
            seen.append(model.prefill(prompt[end - size : end], cache))
    for expected, seen in zip(alone, states, strict=True):
        np.testing.assert_array_equal(np.array(mx.concatenate(seen)), expected)


def test_every_instruction_set_and_thread_count(
    model: Model,
    prompt: list[int],
    at_once: tuple[np.ndarray, Cache],
    each_isa: Iterator[str],
    each_thread_count: Callable[[], Iterator[int]],
) -> None:
    short = prompt[:140]
    for _ in each_isa:
        for _ in each_thread_count():
            np.testing.assert_array_equal(run(model, short, [140])[0], at_once[0][:140])


def test_a_full_cache_is_used_to_the_last_row(model: Model, tiny: TinyModel) -> None:
    for capacity in (1, 4, 5, 127, 128, 130):
        tokens = random_tokens(tiny.config, capacity)
        whole, _ = run(model, tokens, [capacity])
        cache = model.make_cache(capacity)
        states = [model.prefill([token], cache) for token in tokens]
        np.testing.assert_array_equal(np.array(mx.concatenate(states)), whole)
