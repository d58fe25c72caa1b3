"""Growth: what a longer cache holds, and that a failure leaves the shorter one as it was."""

import pytest

from bare_cache import CONFIG, append, fresh, make
from cache_contents import pointers, readable, stream_tokens
from mlx_dsv4.cache import Cache
from mlx_dsv4.errors import AllocationError, CacheStateError, PlanError

pytestmark = pytest.mark.usefixtures("nan_in_new_buffers")

END = 290
TOKENS = stream_tokens(0, 0, END)


@pytest.fixture
def cache() -> Cache:
    """A cache at 180 of 200 tokens."""
    cache = make(200)
    append(TOKENS[:180], cache)
    return cache


# Rings of less than 128 rows become longer.
@pytest.mark.parametrize("target", [128, 129, 300])
@pytest.mark.parametrize("capacity", [1, 3, 4, 5, 100, 127, 128])
def test_a_grown_cache_goes_on(capacity: int, target: int) -> None:
    for position in {0, 1, capacity // 2, capacity}:
        cache = make(capacity)
        if position:
            append(TOKENS[:position], cache)
        cache.grow(target)
        assert (cache.capacity_tokens, cache.position) == (target, position)
        assert cache.held_bytes() == cache.plan.n_bytes == make(target).held_bytes()
        assert readable(cache) == fresh(TOKENS[:position])
        end = min(target, END)
        if position < end:
            append(TOKENS[position:end], cache)
        assert readable(cache) == fresh(TOKENS[:end])


@pytest.mark.parametrize("position", [0, 1, 4, 99, 100])
def test_snapshots_and_anchors_stay_valid(position: int) -> None:
    cache = make(100)
    if position:
        append(TOKENS[:position], cache)
    snapshot = cache.snapshot()
    assert cache.anchor().position == position
    if position < 100:
        append(TOKENS[position:100], cache)
    cache.grow(300)
    append(TOKENS[100:END], cache)
    assert [anchor.position for anchor in cache.anchors] == [position]
    cache.restore(snapshot)
    assert readable(cache) == fresh(TOKENS[:position])
    append(TOKENS[position:END], cache)
    cache.rewind(position)
    append(TOKENS[position:END], cache)
    assert readable(cache) == fresh(TOKENS)


def test_a_snapshot_after_the_cursor_stays_valid(cache: Cache) -> None:
    """Going back overwrites nothing, so the rows after the cursor move too."""
    late = cache.snapshot()
    cache.reset()
    cache.grow(300)
    cache.restore(late)
    assert readable(cache) == fresh(TOKENS[:180])
    append(TOKENS[180:END], cache)
    assert readable(cache) == fresh(TOKENS)


def test_growing_twice(cache: Cache) -> None:
    cache.grow(201)
    cache.grow(300)
    append(TOKENS[180:], cache)
    assert readable(cache) == fresh(TOKENS)


def test_the_present_capacity_changes_nothing(cache: Cache) -> None:
    before = pointers(cache)
    cache.grow(200)
    assert pointers(cache) == before


def unchanged(cache: Cache, before: list[int]) -> bool:
    """Whether the cache of the fixture is as it was, and goes on."""
    same = (cache.capacity_tokens, cache.position, cache.poisoned) == (200, 180, False)
    same = same and pointers(cache) == before and readable(cache) == fresh(TOKENS[:180])
    append(TOKENS[180:200], cache)
    return same and readable(cache) == fresh(TOKENS[:200])


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        (199, r"a cache grows: capacity must be at least 200 tokens; got 199"),
        (CONFIG.context + 1, rf"context must be at most the model's {CONFIG.context} tokens"),
    ],
)
def test_a_capacity_that_cannot_be_is_refused(cache: Cache, capacity: int, message: str) -> None:
    before = pointers(cache)
    with pytest.raises(PlanError, match=message):
        cache.grow(capacity)
    assert unchanged(cache, before)


def test_too_little_memory_is_refused(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    before = pointers(cache)
    with monkeypatch.context() as patch:
        patch.setattr("mlx_dsv4.cache.buffers.available_bytes", lambda: 1000)
        with pytest.raises(AllocationError, match=r"cache of 300 tokens needs .* 1000 are"):
            cache.grow(300)
    assert unchanged(cache, before)


@pytest.mark.parametrize(
    "step",
    [
        "mlx_dsv4.cache.layer.uninitialized",
        "mlx_dsv4.cache.buffers.Buffers.copy_closed_rows",
        "mlx_dsv4.cache.buffers.thaw",
        "mlx_dsv4.cache.cache.freeze",
    ],
)
def test_the_source_is_untouched_by_a_failure(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = pointers(cache)
    with monkeypatch.context() as patch:
        patch.setattr(step, fail)
        with pytest.raises(MemoryError, match="injected"):
            cache.grow(300)
    assert unchanged(cache, before)


def fail(*_: object, **__: object) -> None:
    raise MemoryError("injected")


def test_growing_while_a_branch_reads(cache: Cache) -> None:
    branch = cache.branch(cache.snapshot())
    cache.grow(300)
    append(TOKENS[180:], cache)
    others = stream_tokens(1, 180, 200)
    assert (branch.capacity_tokens, branch.held_bytes()) == (200, 0)
    append(others, branch)
    assert readable(branch) == fresh(TOKENS[:180] + others)
    assert readable(cache) == fresh(TOKENS)


def test_the_buffers_that_growth_leaves_go_to_the_branch(cache: Cache) -> None:
    branch = cache.branch(cache.snapshot())
    left = pointers(cache)
    cache.grow(300)
    append(TOKENS[180:200], branch)
    assert pointers(branch) == left
    assert readable(branch) == fresh(TOKENS[:200])


def test_a_branch_with_a_small_ring_takes_a_snapshot_of_a_large_one() -> None:
    """The grown origin's snapshots have 128 ring rows; the branch, which has not written, 100."""
    origin = make(100)
    append(TOKENS[:60], origin)
    early = origin.snapshot()
    append(TOKENS[60:90], origin)
    branch = origin.branch(origin.snapshot())
    origin.grow(300)
    origin.restore(early)
    branch.restore(origin.snapshot())
    append(TOKENS[60:100], branch)
    assert readable(branch) == fresh(TOKENS[:100])
    branch.grow(300)
    append(TOKENS[100:], branch)
    assert readable(branch) == fresh(TOKENS)


def test_a_poisoned_cache_grows_once_restored(cache: Cache) -> None:
    snapshot = cache.snapshot()
    cache.poison("test")
    with pytest.raises(CacheStateError, match="poisoned"):
        cache.grow(300)
    cache.restore(snapshot)
    cache.grow(300)
    append(TOKENS[180:], cache)
    assert readable(cache) == fresh(TOKENS)
