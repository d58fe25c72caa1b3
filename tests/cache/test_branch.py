"""Branches: what they share, for how long, and that neither cache sees the other's rows."""

import gc
import sys
from collections.abc import Callable, Iterator
from threading import Barrier, Event, Thread, Timer, current_thread

import pytest

from bare_cache import append, fresh, make
from cache_contents import pointers, readable, readable_unchanged, stream_tokens
from mlx_dsv4.cache import Cache
from mlx_dsv4.errors import AllocationError, CacheStateError, SnapshotError

pytestmark = pytest.mark.usefixtures("nan_in_new_buffers")

# Where a cache branches: inside spans and at their ends, before and after the ring is full.
POINTS = [0, 1, 3, 4, 127, 128, 130, 257]
CAPACITY = 300
TOKENS = stream_tokens(0, 0, CAPACITY)


def read(cache: Cache, stream: int, end: int = CAPACITY) -> list[int]:
    """Append the tokens of a stream up to ``end``; returns them."""
    tokens = stream_tokens(stream, cache.position, end)
    append(tokens, cache)
    return tokens


def at(point: int) -> Cache:
    """A cache that has read the first ``point`` tokens."""
    cache = make(CAPACITY)
    if point:
        append(TOKENS[:point], cache)
    return cache


def branch_at(point: int, further: int = 0) -> tuple[Cache, Cache]:
    """A cache that has read ``further`` tokens more, and its branch from ``point``."""
    origin = at(point)
    snapshot = origin.snapshot()
    if further:
        append(TOKENS[point : point + further], origin)
    return origin, origin.branch(snapshot)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("further", [0, 9])
def test_a_branch_shares_until_it_writes(point: int, further: int) -> None:
    origin, branch = branch_at(point, further)
    before, rows = pointers(origin), readable(origin)
    assert (branch.position, branch.capacity_tokens) == (point, CAPACITY)
    assert (branch.held_bytes(), branch.handles()) == (0, [])
    assert readable_unchanged(branch) == fresh(TOKENS[:point])
    assert branch.held_bytes() == 0
    others = read(branch, 1)
    assert branch.held_bytes() == branch.plan.n_bytes
    assert not set(pointers(branch)) & set(before)
    assert (pointers(origin), readable(origin)) == (before, rows)
    assert readable(branch) == fresh(TOKENS[:point] + others)


def branch_first(origin: Cache, branch: Cache) -> None:
    read(branch, 1, branch.position + 2)
    read(origin, 2)


def origin_first(origin: Cache, branch: Cache) -> None:
    read(origin, 2)
    read(branch, 1, branch.position + 2)


def token_by_token_in_turn(origin: Cache, branch: Cache) -> None:
    for _ in range(6):
        read(origin, 2, origin.position + 1)
        read(branch, 1, branch.position + 1)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("further", [0, 9])
@pytest.mark.parametrize("write", [branch_first, origin_first, token_by_token_in_turn])
def test_neither_sees_the_rows_of_the_other(
    point: int, further: int, write: Callable[[Cache, Cache], None]
) -> None:
    origin, branch = branch_at(point, further)
    start = origin.position
    write(origin, branch)
    read(branch, 1)
    if origin.position < CAPACITY:
        read(origin, 2, origin.position + 1)
    expected = TOKENS[:start] + stream_tokens(2, start, origin.position)
    assert readable(origin) == fresh(expected)
    assert readable(branch) == fresh(TOKENS[:point] + stream_tokens(1, point, CAPACITY))


@pytest.mark.parametrize("back_to", [0, 3, 100, 127, 129])
@pytest.mark.parametrize("written", [False, True])
def test_the_origin_goes_back_before_the_branch_and_appends(back_to: int, written: bool) -> None:
    origin = at(back_to)
    early = origin.snapshot()
    append(TOKENS[back_to:130], origin)
    branch = origin.branch(origin.snapshot())
    if written:
        read(branch, 1, 131)
    origin.restore(early)
    assert bool(branch.held_bytes()) == written
    others = read(origin, 2)
    assert branch.held_bytes() == branch.plan.n_bytes
    end = branch.position
    branch_tokens = TOKENS[:130] + stream_tokens(1, 130, end)
    assert readable(branch) == fresh(branch_tokens)
    branch_tokens += read(branch, 1)
    assert readable(branch) == fresh(branch_tokens)
    assert readable(origin) == fresh(TOKENS[:back_to] + others)


def test_an_origin_that_goes_back_to_the_branch_point_copies_nothing() -> None:
    origin = at(130)
    snapshot = origin.snapshot()
    append(TOKENS[130:140], origin)
    branch = origin.branch(snapshot)
    origin.restore(snapshot)
    read(origin, 2)
    assert branch.held_bytes() == 0
    assert readable(branch) == fresh(TOKENS[:130])


def test_the_origin_is_reset() -> None:
    origin, branch = branch_at(130, 9)
    origin.reset()
    assert branch.held_bytes() == 0
    others = read(origin, 2, 200)
    assert readable(branch) == fresh(TOKENS[:130])
    assert readable(origin) == fresh(others)


def test_the_origin_fails() -> None:
    origin, branch = branch_at(130, 9)
    with pytest.raises(MemoryError, match="injected"):
        append([1, 2], origin, fail_at=1)
    other = origin.branch(branch.snapshot())
    for each in (branch, other):
        assert not each.poisoned
        read(each, 1)
        assert readable(each) == fresh(TOKENS[:130] + stream_tokens(1, 130, CAPACITY))


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("poisoned", [False, True])
def test_a_branch_takes_over_the_buffers_of_an_origin_that_is_gone(
    point: int, poisoned: bool
) -> None:
    origin, branch = branch_at(point, 40)
    left = pointers(origin)
    if poisoned:
        origin.poison("test")
    del origin
    gc.collect()
    others = read(branch, 1)
    assert pointers(branch) == left
    assert readable(branch) == fresh(TOKENS[:point] + others)


def test_the_last_of_several_branches_takes_over() -> None:
    origin, first = branch_at(130, 9)
    second = first.branch(first.snapshot())
    left = pointers(origin)
    del origin
    gc.collect()
    others = read(first, 1)
    assert not set(pointers(first)) & set(left)
    assert readable_unchanged(second) == fresh(TOKENS[:130])
    read(second, 2)
    assert pointers(second) == left
    assert readable(second) == fresh(TOKENS[:130] + stream_tokens(2, 130, CAPACITY))
    assert readable(first) == fresh(TOKENS[:130] + others)


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
@pytest.mark.parametrize("back", [False, True])
def test_a_branch_of_a_branch(order: tuple[int, ...], back: bool) -> None:
    origin = at(60)
    early = origin.snapshot()
    append(TOKENS[60:200], origin)
    child = origin.branch(origin.snapshot())
    if back:
        child.restore(early)
    caches = [origin, child, child.branch(early)]
    starts = [cache.position for cache in caches]
    assert starts == [200, 60 if back else 200, 60]
    if back:
        origin.restore(early)
        starts[0] = 60
    for which in order:
        read(caches[which], which + 1, 250)
    for which, (cache, start) in enumerate(zip(caches, starts, strict=True)):
        assert readable(cache) == fresh(TOKENS[:start] + stream_tokens(which + 1, start, 250))


def test_snapshots_from_before_the_branch_are_of_use_in_both() -> None:
    origin = at(5)
    early = origin.snapshot()
    append(TOKENS[5:130], origin)
    branch = origin.branch(origin.snapshot())
    late = branch.snapshot()
    read(origin, 1, 140)
    own = origin.snapshot()
    with pytest.raises(SnapshotError, match="or they are those of a branch"):
        branch.restore(own)
    for cache in (branch, origin):
        for snapshot in (early, late):
            cache.restore(snapshot)
            assert readable_unchanged(cache) == fresh(TOKENS[: snapshot.position])


def test_a_branch_goes_back_and_forward_while_the_origin_overwrites() -> None:
    """Its later rows are still wanted although its cursor is before them."""
    origin = at(60)
    early = origin.snapshot()
    append(TOKENS[60:200], origin)
    late = origin.snapshot()
    branch = origin.branch(late)
    branch.restore(early)
    origin.restore(early)
    read(origin, 2)
    branch.restore(late)
    assert readable(branch) == fresh(TOKENS[:200])


def test_a_branch_that_is_reset_holds_what_it_says_it_holds() -> None:
    origin, branch = branch_at(130)
    late = branch.snapshot()
    branch.reset()
    assert (branch.position, branch.poisoned) == (0, False)
    try:
        branch.restore(late)
    except SnapshotError:
        assert branch.position == 0
    assert readable(branch) == fresh(TOKENS[: branch.position])
    read(branch, 1)
    assert readable(origin) == fresh(TOKENS[:130])


@pytest.mark.parametrize("target", [CAPACITY, CAPACITY + 1, 1000])
def test_a_branch_grows_before_it_writes(target: int) -> None:
    origin, branch = branch_at(130, 9)
    branch.grow(target)
    assert branch.capacity_tokens == target
    read(branch, 1)
    read(origin, 2)
    assert readable(branch) == fresh(TOKENS[:130] + stream_tokens(1, 130, CAPACITY))
    assert readable(origin) == fresh(TOKENS[:139] + stream_tokens(2, 139, CAPACITY))


def test_a_branch_of_a_grown_cache() -> None:
    origin = make(100)
    append(TOKENS[:90], origin)
    snapshot = origin.snapshot()
    origin.grow(CAPACITY)
    append(TOKENS[90:150], origin)
    branch = origin.branch(snapshot)
    read(branch, 1)
    assert readable(branch) == fresh(TOKENS[:90] + stream_tokens(1, 90, CAPACITY))
    assert readable(origin) == fresh(TOKENS[:150])


def going_back(origin: Cache, branch: Cache) -> None:
    origin.rewind(0)
    read(origin, 2, 10)


@pytest.mark.parametrize(
    "write",
    [going_back, lambda _, branch: read(branch, 1), lambda _, branch: branch.reset()],
    ids=["origin goes back", "branch writes", "branch is reset"],
)
def test_no_memory_for_a_copy_leaves_both_as_they_were(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[Cache, Cache], object]
) -> None:
    origin, branch = branch_at(130, 9)
    late = origin.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr("mlx_dsv4.cache.buffers.available_bytes", lambda: 1000)
        with pytest.raises(AllocationError, match="1000 are available"):
            write(origin, branch)
    assert (origin.poisoned, branch.poisoned, branch.held_bytes()) == (False, False, 0)
    assert branch.position == 130
    assert readable_unchanged(branch) == fresh(TOKENS[:130])
    origin.restore(late)
    assert readable(origin) == fresh(TOKENS[:139])
    read(branch, 1)
    assert readable(branch) == fresh(TOKENS[:130] + stream_tokens(1, 130, CAPACITY))


def test_a_branch_that_fails_is_poisoned_alone() -> None:
    origin, branch = branch_at(130, 9)
    snapshot = branch.snapshot()
    with pytest.raises(MemoryError, match="injected"):
        append([1, 2], branch, fail_at=1)
    with pytest.raises(CacheStateError, match="poisoned"):
        append([1], branch)
    assert readable(origin) == fresh(TOKENS[:139])
    branch.restore(snapshot)
    read(branch, 1)
    assert readable(branch) == fresh(TOKENS[:130] + stream_tokens(1, 130, CAPACITY))


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads change places as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("eager_switching")
@pytest.mark.parametrize("back", [False, True])
def test_two_threads_step_origin_and_branch(back: bool) -> None:
    """``back``: the origin overwrites what the branch reads, just as the branch first writes."""
    for _ in range(15):
        origin, branch = branch_at(130, 9)
        if back:
            origin.reset()
        start, together = origin.position, Barrier(2)

        def step(cache: Cache, stream: int, together: Barrier = together) -> None:
            together.wait()
            for _ in range(20):
                read(cache, stream, cache.position + 1)

        threads = [Thread(target=step, args=arguments) for arguments in ((origin, 2), (branch, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = TOKENS[:start] + stream_tokens(2, start, start + 20)
        assert readable(origin) == fresh(expected)
        assert readable(branch) == fresh(TOKENS[:130] + stream_tokens(1, 130, 150))


@pytest.mark.parametrize("move", [lambda branch: branch.grow(400), Cache.reset])
def test_the_origin_moves_a_branch_that_waits_to_move(
    monkeypatch: pytest.MonkeyPatch, move: Callable[[Cache], None]
) -> None:
    """The branch leaves the buffers it has by then, and not those that the origin writes to."""
    origin, branch = branch_at(130, 9)
    copying, waiting = Event(), Event()

    def step_from_0() -> None:
        origin.reset()
        read(origin, 2, 200)

    def pause() -> None:
        if current_thread() is thread:
            copying.set()
            waiting.wait()

    monkeypatch.setattr("mlx_dsv4.cache.buffers.available_bytes", pause)
    thread = Thread(target=step_from_0)
    thread.start()
    copying.wait()
    Timer(0.1, waiting.set).start()
    move(branch)
    thread.join()
    assert readable(branch) == fresh(TOKENS[: branch.position])
    sibling = origin.branch(origin.snapshot())
    read(sibling, 3)
    assert not set(pointers(sibling)) & set(pointers(origin))
    assert readable(origin) == fresh(stream_tokens(2, 0, 200))
