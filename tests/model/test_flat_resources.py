"""A long session holds as much after 2,000 tokens as after 100: arrays, bytes and files."""

import gc
import os
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest

from mlx_dsv4.cache import Cache
from mlx_dsv4.model import Model
from tiny_models import tiny_model

STEPS = 2000
WARM = 100
EVERY = 50  # tokens between snapshots
DESCRIPTORS = Path("/dev/fd")


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    arrays: int
    array_bytes: int
    descriptors: int


def held() -> Held:
    """What is held once nothing is in flight and no garbage is left."""
    mx.synchronize()
    gc.collect()
    arrays = sum(type(thing) is mx.array for thing in gc.get_objects())
    return Held(arrays, mx.get_active_memory(), len(os.listdir(DESCRIPTORS)))


@pytest.fixture(scope="module")
def model() -> Model:
    tiny = tiny_model(
        **{"ratios": (4,), "hash_layers": 1, "hidden": 64, "heads": 2, "head_dim": 128},
        **{"q_rank": 32, "output_rank": 32, "output_groups": 2, "indexer_heads": 2},
        **{"indexer_dim": 64, "experts": 4, "expert_hidden": 32},
    )
    return tiny.load("official")


def decode(model: Model, cache: Cache, n_tokens: int) -> mx.array:
    """Decode greedily, each token from the logits of the one before, without waiting."""
    token = mx.array([5], mx.int32)
    for _ in range(n_tokens):
        token = mx.argmax(model.logits(model.step(token, cache)), axis=-1).astype(mx.int32)
    return token


def test_decoding_with_snapshots_holds_no_more_in_the_end(model: Model) -> None:
    cache = model.make_cache(STEPS)
    snapshot, seen = cache.snapshot(), []
    while cache.position < STEPS:
        decode(model, cache, EVERY)
        snapshot = cache.snapshot()
        seen.append(held())
    assert snapshot.n_bytes == cache.plan.snapshot_bytes
    warm = seen[WARM // EVERY - 1 :]
    assert len(warm) > 30
    assert set(warm) == {warm[0]}


def test_a_kept_snapshot_costs_its_own_bytes_and_no_array_of_the_cache(model: Model) -> None:
    cache = model.make_cache(200)
    decode(model, cache, 150)
    before = held()
    kept = [cache.snapshot() for _ in range(20)]
    assert held() == before
    assert sum(snapshot.data.nbytes for snapshot in kept) == 20 * cache.plan.snapshot_bytes
    assert all(snapshot.data.base.nbytes == snapshot.data.nbytes for snapshot in kept)


def test_going_back_and_branching_leave_nothing_behind(model: Model) -> None:
    cache = model.make_cache(200)
    decode(model, cache, 100)
    snapshot, seen = cache.snapshot(), []
    for _ in range(30):
        branch = cache.branch(snapshot)
        decode(model, branch, 3)
        branch.grow(300)
        decode(model, cache, 3)
        cache.restore(snapshot)
        del branch
        seen.append(held())
    assert set(seen[2:]) == {seen[2]}
