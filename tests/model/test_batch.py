"""Caches side by side in one call: each gets, to the bit, what it would have got alone."""

from collections.abc import Callable
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_contents import readable
from mlx_dsv4.cache import Cache
from mlx_dsv4.errors import CacheStateError, PromptError
from mlx_dsv4.gguf.tiny import Formats
from mlx_dsv4.model import Model
from tiny_models import TinyModel, random_tokens, tiny_model

CAPACITY = 400
PACKED = Formats("q8_0", "mxfp4", "bf16", "q8_0", "f16")


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    return tiny_model(formats=PACKED)


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> Model:
    return tiny.load("official")


@pytest.fixture(scope="module")
def prompts(tiny: TinyModel) -> list[list[int]]:
    return [random_tokens(tiny.config, 320, seed) for seed in range(4)]


@pytest.fixture(scope="module")
def alone(model: Model, prompts: list[list[int]]) -> list[np.ndarray]:
    """Hidden states of each prompt, read at once by itself."""
    return [np.array(model.prefill(prompt, model.make_cache(CAPACITY))) for prompt in prompts]


def advance(
    model: Model, prompts: list[list[int]], caches: list[Cache], sizes: dict[int, int]
) -> dict[int, np.ndarray]:
    """One call that reads the next ``sizes[i]`` tokens of prompt i; states by prompt."""
    calls = [
        (prompts[i][caches[i].position : caches[i].position + n], caches[i])
        for i, n in sizes.items()
    ]
    states = model.advance(calls)
    return {i: np.array(state) for i, state in zip(sizes, states, strict=True)}


@pytest.mark.parametrize("starts", [(0, 0), (3, 127), (128, 1), (130, 255), (64, 64, 63, 200)])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (128, 1, 1, 1), (1, 5, 1, 60), (33, 33, 4, 8)])
def test_positions_and_lengths_side_by_side(
    model: Model,
    prompts: list[list[int]],
    alone: list[np.ndarray],
    starts: tuple[int, ...],
    sizes: tuple[int, ...],
) -> None:
    caches = [model.make_cache(CAPACITY) for _ in starts]
    for prompt, cache, start in zip(prompts, caches, starts, strict=False):
        if start:
            model.prefill(prompt[:start], cache)
    states = advance(model, prompts, caches, dict(enumerate(sizes[: len(starts)])))
    for i, (start, cache) in enumerate(zip(starts, caches, strict=True)):
        np.testing.assert_array_equal(states[i], alone[i][start : start + sizes[i]])
        single = model.make_cache(CAPACITY)
        model.prefill(prompts[i][: start + sizes[i]], single)
        assert readable(cache) == readable(single)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_interleaving(
    model: Model, prompts: list[list[int]], alone: list[np.ndarray], data: st.DataObject
) -> None:
    """Sessions that come, read different lengths and go."""
    caches = [model.make_cache(CAPACITY) for _ in prompts]
    seen: list[list[np.ndarray]] = [[] for _ in prompts]
    for _ in range(data.draw(st.integers(1, 6))):
        who = data.draw(st.sets(st.integers(0, 3), min_size=1), label="who")
        sizes = {
            i: data.draw(st.sampled_from([1, 1, 3, 4, 31, 128]), label=f"size {i}") for i in who
        }
        sizes = {i: min(n, 320 - caches[i].position) for i, n in sizes.items()}
        sizes = {i: n for i, n in sizes.items() if n}
        if sizes:
            for i, state in advance(model, prompts, caches, sizes).items():
                seen[i].append(state)
    for states, expected in zip(seen, alone, strict=True):
        if states:
            joined = np.concatenate(states)
            np.testing.assert_array_equal(joined, expected[: len(joined)])


def test_branches_of_one_cache_go_on_together(
    model: Model, prompts: list[list[int]], alone: list[np.ndarray]
) -> None:
    origin = model.make_cache(CAPACITY)
    model.prefill(prompts[0][:150], origin)
    snapshot = origin.snapshot()
    caches = [origin, origin.branch(snapshot), origin.branch(snapshot)]
    suffixes = [prompts[0][150:170], prompts[1][:9], prompts[2][:40]]
    states = model.advance(list(zip(suffixes, caches, strict=True)))
    np.testing.assert_array_equal(np.array(states[0]), alone[0][150:170])
    for suffix, state in zip(suffixes[1:], states[1:], strict=True):
        single = model.make_cache(CAPACITY)
        model.prefill(prompts[0][:150], single)
        np.testing.assert_array_equal(np.array(state), np.array(model.prefill(suffix, single)))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m, a, b: [([1], a), ([], b)], PromptError, "at least one token"),
        (lambda m, a, b: [([1], a), ([5000], b)], PromptError, r"got 5000 at index 0"),
        (lambda m, a, b: [([1], a), ([2], a)], CacheStateError, "each cache once"),
        (lambda m, a, b: [([1], a), ([2] * 500, b)], CacheStateError, "past the cache's 400"),
        (
            lambda m, a, b: [([1], a), ([2], m.make_cache(9, row_dtype="float32"))],
            CacheStateError,
            "one row dtype; got bfloat16 and float32",
        ),
        (lambda m, a, b: [], CacheStateError, "got none"),
    ],
)
def test_a_call_that_cannot_be_made_changes_no_cache(
    model: Model,
    change: Callable[[Model, Cache, Cache], list[tuple[list[int], Cache]]],
    error: type[Exception],
    message: str,
) -> None:
    caches = [model.make_cache(CAPACITY) for _ in range(2)]
    for cache in caches:
        model.prefill([3, 4, 5], cache)
    before = [readable(cache) for cache in caches]
    with pytest.raises(error, match=message):
        model.advance(change(model, *caches))
    assert [(cache.position, cache.poisoned) for cache in caches] == [(3, False)] * 2
    assert [readable(cache) for cache in caches] == before


def test_a_poisoned_cache_stops_the_call_before_the_others(model: Model) -> None:
    good, bad = model.make_cache(CAPACITY), model.make_cache(CAPACITY)
    bad.poison("on purpose")
    with pytest.raises(CacheStateError, match="on purpose"):
        model.advance([([1], good), ([2], bad)])
    assert (good.position, good.poisoned) == (0, False)


def test_a_failure_of_the_work_poisons_every_cache_of_the_call(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = [model.make_cache(CAPACITY) for _ in range(2)]
    monkeypatch.setattr(mx, "eval", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.advance([([1], caches[0]), ([2], caches[1])])
    monkeypatch.undo()
    assert [cache.poisoned for cache in caches] == [True, True]


def test_states_are_cut_in_the_order_of_the_calls(
    model: Model, prompts: list[list[int]], alone: list[np.ndarray]
) -> None:
    sizes = [4, 1, 7]
    states = model.advance(
        [(prompt[:n], model.make_cache(9)) for prompt, n in zip(prompts, sizes, strict=False)]
    )
    assert [state.shape[0] for state in states] == sizes
    for (state, expected), n in zip(zip(states, alone, strict=False), sizes, strict=True):
        np.testing.assert_array_equal(np.array(state), expected[:n])
    assert all(a is not b for a, b in pairwise(states))
