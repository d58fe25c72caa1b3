"""Anchors and rewind: exactly the position that was asked for, or a refusal."""

from collections.abc import Callable

import pytest

from bare_cache import append, fresh, make
from cache_contents import readable, stream_tokens
from mlx_dsv4.cache import Cache
from mlx_dsv4.errors import CacheStateError

pytestmark = pytest.mark.usefixtures("nan_in_new_buffers")

END = 260
TOKENS = stream_tokens(0, 0, END)
ANCHORS = [5, 64, 130, 257]


@pytest.fixture
def cache() -> Cache:
    """A cache at 260 tokens with anchors."""
    cache = make(300)
    for position in ANCHORS:
        append(TOKENS[cache.position : position], cache)
        cache.anchor()
    append(TOKENS[cache.position :], cache)
    return cache


def positions(cache: Cache) -> list[int]:
    return [anchor.position for anchor in cache.anchors]


def replay_into(cache: Cache, seen: list[tuple[int, int]]) -> Callable[[int, int], None]:
    def replay(start: int, end: int) -> None:
        seen.append((start, end))
        append(TOKENS[start:end], cache)

    return replay


def goes_on(cache: Cache, position: int) -> bool:
    """Whether the cache holds the first ``position`` tokens, and takes others after them."""
    same = (cache.position, cache.poisoned) == (position, False)
    same = same and readable(cache) == fresh(TOKENS[:position])
    others = stream_tokens(1, position, 300)
    append(others, cache)
    return same and readable(cache) == fresh(TOKENS[:position] + others)


@pytest.mark.parametrize("position", range(0, END + 1, 4))
def test_rewind_is_exact(cache: Cache, position: int) -> None:
    seen: list[tuple[int, int]] = []
    cache.rewind(position, replay_into(cache, seen))
    nearest = max(at for at in [0, *ANCHORS, END] if at <= position)
    assert seen == ([] if nearest == position else [(nearest, position)])
    assert goes_on(cache, position)


@pytest.mark.parametrize("position", [0, *ANCHORS, END])
def test_an_anchor_needs_no_replay(cache: Cache, position: int) -> None:
    cache.rewind(position)
    assert goes_on(cache, position)


@pytest.mark.parametrize("position", [1, 63, 129, 131, 259])
def test_without_replay_another_position_is_refused(cache: Cache, position: int) -> None:
    nearest = max(at for at in [0, *ANCHORS] if at <= position)
    message = rf"append {nearest}\.\.{position} again: the nearest anchor is at {nearest}"
    with pytest.raises(CacheStateError, match=message):
        cache.rewind(position)
    assert positions(cache) == ANCHORS
    assert (cache.position, readable(cache)) == (END, fresh(TOKENS))


@pytest.mark.parametrize("position", [-1, END + 1])
def test_a_position_that_is_not_held_is_refused(cache: Cache, position: int) -> None:
    with pytest.raises(CacheStateError, match=rf"0\.\.260, the cursor; got {position}"):
        cache.rewind(position, replay_into(cache, []))
    assert (cache.position, readable(cache)) == (END, fresh(TOKENS))


@pytest.mark.parametrize("end", [100, 99, 101])
def test_a_replay_must_end_where_it_was_asked_to(cache: Cache, end: int) -> None:
    def replay(start: int, _: int) -> None:
        append(TOKENS[start:end], cache)

    if end == 100:
        cache.rewind(100, replay)
    else:
        with pytest.raises(CacheStateError, match=rf"replay\(64, 100\) must end at 100; got {end}"):
            cache.rewind(100, replay)
    assert (cache.position, readable(cache)) == (end, fresh(TOKENS[:end]))


def test_a_replay_that_fails_leaves_the_anchor(cache: Cache) -> None:
    def replay(start: int, end: int) -> None:
        append(TOKENS[start:end], cache, fail_at=1)

    with pytest.raises(MemoryError, match="injected"):
        cache.rewind(100, replay)
    assert cache.poisoned
    assert positions(cache) == [5, 64]
    cache.rewind(64)
    assert goes_on(cache, 64)


@pytest.mark.parametrize("position", [0, 5, 130, 257])
def test_a_poisoned_cache_rewinds(cache: Cache, position: int) -> None:
    cache.rewind(257)
    with pytest.raises(MemoryError, match="injected"):
        append([1, 2], cache, fail_at=1)
    with pytest.raises(CacheStateError, match="poisoned"):
        cache.anchor()
    cache.rewind(position)
    assert goes_on(cache, position)


def test_a_poisoned_cache_is_not_where_its_cursor_is(cache: Cache) -> None:
    cache.poison("test")
    with pytest.raises(CacheStateError, match="nearest anchor is at 257"):
        cache.rewind(END)
    assert cache.poisoned
    cache.rewind(END, replay_into(cache, []))
    assert goes_on(cache, END)


def test_overwriting_drops_the_anchors_after_it(cache: Cache) -> None:
    cache.rewind(64)
    assert positions(cache) == ANCHORS
    append(stream_tokens(1, 64, END), cache)
    assert positions(cache) == [5, 64]
    with pytest.raises(CacheStateError, match="nearest anchor is at 64"):
        cache.rewind(130)


def test_one_anchor_a_position(cache: Cache) -> None:
    first = cache.anchor()
    assert cache.anchor() is first
    cache.rewind(64)
    assert cache.anchor() is cache.anchors[1]
    assert positions(cache) == [*ANCHORS, END]


def test_an_anchor_between_others_is_in_its_place(cache: Cache) -> None:
    cache.rewind(64)
    append(TOKENS[64:70], cache)
    cache.anchor()
    cache.rewind(5)
    append(TOKENS[5:7], cache)
    cache.anchor()
    assert positions(cache) == [5, 7]


def test_a_dropped_anchor_is_gone(cache: Cache) -> None:
    cache.drop_anchor(64)
    cache.drop_anchor(65)
    assert positions(cache) == [5, 130, 257]
    with pytest.raises(CacheStateError, match="nearest anchor is at 5"):
        cache.rewind(64)
    cache.rewind(5)
    assert goes_on(cache, 5)


def test_a_branch_begins_without_anchors(cache: Cache) -> None:
    branch = cache.branch(cache.anchors[1])
    assert positions(branch) == []
    branch.anchor()
    append(stream_tokens(1, 64, 80), branch)
    branch.rewind(64)
    assert (positions(branch), positions(cache)) == ([64], ANCHORS)
    assert goes_on(branch, 64)
