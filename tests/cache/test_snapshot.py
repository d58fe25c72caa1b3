"""A snapshot: its size, how long it is valid, and that a restore is done wholly or not at all."""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from bare_cache import CONFIG, append, fresh, make
from cache_contents import readable, stream_tokens
from mlx_dsv4 import ops
from mlx_dsv4.cache import Cache, Fingerprint, plan_cache
from mlx_dsv4.errors import CacheStateError, SnapshotError

pytestmark = pytest.mark.usefixtures("nan_in_new_buffers")

# Around the ends of spans and of the ring.
POSITIONS = [0, 1, 3, 4, 5, 7, 8, 9, 127, 128, 129, 130, 255, 256, 257]
END = 270
TOKENS = stream_tokens(0, 0, END)


@pytest.fixture
def cache() -> Cache:
    return make(300)


def read(cache: Cache, end: int, stream: int = 0) -> None:
    """Append the tokens of a stream up to ``end``."""
    if end > cache.position:
        append(stream_tokens(stream, cache.position, end), cache)


def state_of(cache: Cache) -> tuple[int, bool, list[bytes]]:
    return cache.position, cache.poisoned, readable(cache)


@pytest.mark.parametrize("row_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("capacity", [1, 5, 127, 128, 300])
def test_its_size_is_planned_and_does_not_depend_on_the_position(
    capacity: int, row_dtype: str
) -> None:
    cache = make(capacity, row_dtype)
    sizes = [cache.snapshot().n_bytes]
    read(cache, capacity)
    sizes.append(cache.snapshot().n_bytes)
    assert sizes == [cache.plan.snapshot_bytes] * 2
    assert cache.snapshot().position == capacity


def test_its_size_does_not_depend_on_the_context() -> None:
    sizes = {make(capacity).snapshot().n_bytes for capacity in (128, 300, 4096)}
    ring = 3 * 128 * CONFIG.head_dim * 2
    states = 2 * 4 * (8 * 2 * 32 + 8 * 2 * 32 + 128 * 32)
    assert sizes == {ring + states}


def test_it_is_a_value_that_nobody_changes(cache: Cache) -> None:
    read(cache, 200)
    snapshot = cache.snapshot()
    before = bytes(snapshot.data)
    with pytest.raises(ValueError, match="read-only"):
        snapshot.data[0] = 1
    with pytest.raises(AttributeError):
        snapshot.position = 3  # type: ignore[misc]
    read(cache, END)
    cache.grow(400)
    cache.restore(snapshot)
    read(cache, 300, stream=1)
    cache.reset()
    assert bytes(snapshot.data) == before


def test_a_slot_that_no_token_reached_is_zero() -> None:
    """So equal histories give equal snapshots, whatever the ring held."""
    used, new = make(300), make(300)
    read(used, 200, stream=1)
    used.reset()
    for cache in (used, new):
        read(cache, 50)
    assert bytes(used.snapshot().data) == bytes(new.snapshot().data)


@pytest.mark.parametrize("position", POSITIONS)
def test_going_on_from_it_equals_never_having_stopped(cache: Cache, position: int) -> None:
    read(cache, position)
    snapshot = cache.snapshot()
    read(cache, END)
    cache.restore(snapshot)
    assert state_of(cache) == (position, False, fresh(TOKENS[:position]))
    for end in (position + 1, position + 5, END):
        read(cache, end)
        assert readable(cache) == fresh(TOKENS[:end])


@pytest.mark.parametrize("position", POSITIONS)
def test_later_rows_are_invisible(cache: Cache, position: int) -> None:
    read(cache, position)
    snapshot = cache.snapshot()
    read(cache, END)
    cache.restore(snapshot)
    read(cache, position + 9, stream=1)
    others = stream_tokens(1, position, position + 9)
    assert readable(cache) == fresh(TOKENS[:position] + others)


def test_it_is_of_use_any_number_of_times_back_and_forth(cache: Cache) -> None:
    kept = []
    for position in POSITIONS:
        read(cache, position)
        kept.append(cache.snapshot())
    for snapshot in [*kept[::-1], *kept, *kept[::2]]:
        cache.restore(snapshot)
        assert state_of(cache) == (snapshot.position, False, fresh(TOKENS[: snapshot.position]))


def test_forward_again_after_a_reset(cache: Cache) -> None:
    read(cache, 200)
    snapshot = cache.snapshot()
    cache.reset()
    cache.restore(snapshot)
    read(cache, END)
    assert readable(cache) == fresh(TOKENS)


@pytest.mark.parametrize("start", [0, 4, 129, 199])
def test_overwritten_rows_are_refused(cache: Cache, start: int) -> None:
    read(cache, start)
    early = cache.snapshot()
    read(cache, 200)
    late = cache.snapshot()
    cache.restore(early)
    read(cache, 200, stream=1)
    before = state_of(cache)
    with pytest.raises(SnapshotError, match=r"position 200 must .* tokens were appended since"):
        cache.restore(late)
    assert state_of(cache) == before
    cache.restore(early)
    assert readable(cache) == fresh(TOKENS[:start])


@pytest.mark.parametrize("position", [0, 5, 130])
def test_a_snapshot_of_another_cache_is_refused(cache: Cache, position: int) -> None:
    other = make(300)
    for each in (cache, other):
        read(each, position)
    before = state_of(cache)
    for use in (cache.restore, cache.branch):
        with pytest.raises(SnapshotError, match="must be of this cache; it is of another one"):
            use(other.snapshot())
    assert state_of(cache) == before


OTHERS = {
    "row_format": {"row_format": "float32"},
    "numerics": {"numerics": "plain"},
    "arithmetic": {"arithmetic": "metal 1"},
    "model": {"model": "abc"},
    "tokenizer": {"tokenizer": "abc"},
    "config.rope_base": {"config": replace(CONFIG, rope_base=5.0)},
    "config.ratios": {"config": replace(CONFIG, ratios=(4, 0, 128))},
}


@pytest.mark.parametrize("field", OTHERS)
def test_what_differs_is_named(field: str) -> None:
    plan = plan_cache(CONFIG, 300)
    mine = Fingerprint(CONFIG, "bfloat16", numerics="official", model="xyz")
    cache = Cache(plan, mine)
    read(cache, 130)
    wrong = replace(cache.snapshot(), fingerprint=replace(mine, **OTHERS[field]))
    before = state_of(cache)
    for use in (cache.restore, cache.branch):
        with pytest.raises(SnapshotError, match=rf"another cache: {field} must be \S+.*; got \S+"):
            use(wrong)
    assert state_of(cache) == before


def test_every_field_that_differs_is_named(cache: Cache) -> None:
    other = Cache(
        plan_cache(CONFIG, 300, row_dtype="float32"),
        Fingerprint(CONFIG, "float32", numerics="plain"),
    )
    with pytest.raises(
        SnapshotError,
        match="row_format must be 'bfloat16'; got 'float32'; numerics must be ''; got 'plain'",
    ):
        cache.restore(other.snapshot())


def poison(cache: Cache, fail_at: int = 1) -> None:
    with pytest.raises(MemoryError, match="injected"):
        append([1, 2, 3], cache, fail_at=fail_at)


@pytest.mark.parametrize(
    "call",
    [Cache.snapshot, Cache.anchor, lambda cache: cache.grow(400), lambda cache: append([1], cache)],
    ids=["snapshot", "anchor", "grow", "step"],
)
def test_a_poisoned_cache_refuses(cache: Cache, call: Callable[[Cache], object]) -> None:
    read(cache, 130)
    poison(cache)
    with pytest.raises(CacheStateError, match=r"poisoned .*injected.*restore a snapshot"):
        call(cache)


@pytest.mark.parametrize("fail_at", range(len(CONFIG.ratios) + 1))
def test_a_restore_clears_poison(cache: Cache, fail_at: int) -> None:
    read(cache, 130)
    snapshot = cache.snapshot()
    read(cache, 140)
    poison(cache, fail_at)
    cache.restore(snapshot)
    assert state_of(cache) == (130, False, fresh(TOKENS[:130]))
    read(cache, END)
    assert readable(cache) == fresh(TOKENS)


@pytest.mark.parametrize("fail_at", range(len(CONFIG.ratios) + 1))
def test_a_reset_clears_poison(cache: Cache, fail_at: int) -> None:
    read(cache, 130)
    poison(cache, fail_at)
    cache.reset()
    assert state_of(cache) == (0, False, fresh([]))
    read(cache, END)
    assert readable(cache) == fresh(TOKENS)


@pytest.mark.parametrize("by", [poison, lambda cache: cache.poison("test")])
def test_poison_gives_up_the_rows_from_the_cursor_on(
    cache: Cache, by: Callable[[Cache], None]
) -> None:
    read(cache, 130)
    early = cache.snapshot()
    read(cache, 200)
    late = cache.snapshot()
    cache.restore(early)
    by(cache)
    with pytest.raises(SnapshotError, match="position 200"):
        cache.restore(late)
    cache.restore(early)
    assert readable(cache) == fresh(TOKENS[:130])


class Broken:
    """Memory that cannot be had."""

    def __iter__(self) -> None:
        raise MemoryError("injected")


@pytest.mark.parametrize("failing", range(len(CONFIG.ratios)))
def test_a_failure_between_layers_of_a_restore_poisons(cache: Cache, failing: int) -> None:
    read(cache, 130)
    early = cache.snapshot()
    read(cache, 200)
    late = cache.snapshot()
    layer = cache.layers[failing]
    memory, layer.fixed = layer.fixed, Broken()  # type: ignore[assignment]
    with pytest.raises(MemoryError, match="injected"):
        cache.restore(early)
    layer.fixed = memory
    for call in (cache.snapshot, lambda: append([1], cache)):
        with pytest.raises(CacheStateError, match=r"poisoned .a restore was interrupted"):
            call()
    for snapshot in (late, early):
        cache.restore(snapshot)
        assert state_of(cache) == (snapshot.position, False, fresh(TOKENS[: snapshot.position]))
    read(cache, END)
    assert readable(cache) == fresh(TOKENS)


def test_a_failure_of_work_in_flight_poisons_the_snapshot_taken_then(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(cache, 130)
    kept = cache.snapshot()
    read(cache, 140)

    def fail(_: object) -> None:
        raise RuntimeError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(mx, "eval", fail)
        with pytest.raises(RuntimeError, match="injected"):
            cache.snapshot()
        assert cache.poisoned
        cache.restore(kept)
    assert state_of(cache) == (130, False, fresh(TOKENS[:130]))


def slow_step(cache: Cache, value: float) -> None:
    """Write a row of equal numbers that takes a while to compute; does not wait for it."""
    slow = mx.ones((200, 200))
    for _ in range(20):
        slow = mx.tanh(slow @ slow)
    with cache.step(1) as step:
        layer = cache.layers[0]
        row = mx.full((1, CONFIG.head_dim), value, mx.float32) + 0 * slow[0, 0]
        layer.attention_kv = ops.window_write(
            layer.attention_kv,
            row.astype(layer.attention_kv.dtype),
            start=step.start,
            window=layer.window,
        )
        mx.async_eval(cache.handles())


def test_it_waits_for_what_is_in_flight() -> None:
    """A step may return before its rows are there; a copy taken then would be of older ones."""
    cache = make(300, "float32")
    read(cache, 100)
    for position in range(100, 105):
        slow_step(cache, position)
        held = cache.snapshot().data[position * 4 * CONFIG.head_dim :].view(np.float32)
        assert held[0] == position


def test_a_restore_waits_for_what_is_in_flight(cache: Cache) -> None:
    """A row that arrives late would take the place of one that was put back."""
    read(cache, 100)
    snapshot = cache.snapshot()
    read(cache, 128 + 90)
    for _ in range(3):
        slow_step(cache, 7.0)
    cache.restore(snapshot)
    mx.synchronize()
    assert readable(cache) == fresh(TOKENS[:100])
