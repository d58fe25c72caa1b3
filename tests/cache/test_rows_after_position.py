"""Rows after a position that was gone back to: they are there to go forward again, or refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlx_dsv4.cache import Cache, Fingerprint, Snapshot, load_cache, plan_cache, save_cache
from mlx_dsv4.cache.file import write_all
from mlx_dsv4.errors import SnapshotError
from mlx_dsv4.gguf.tiny import tiny_config

PLAN = plan_cache(tiny_config(ratios=(0, 4, 128), hash_layers=1), 300)
FINGERPRINT = Fingerprint(PLAN.config, PLAN.row_dtype)


def append(cache: Cache, end: int, value: int) -> Snapshot:
    """Append tokens whose rows of closed spans are all this byte."""
    with cache.step(end - cache.position) as step:
        for layer, rows in zip(cache.plan.layers, cache.closed_rows(end), strict=True):
            for memory in rows.values():
                memory[step.start // layer.ratio if layer.ratio else 0 :] = value
    return cache.snapshot()


def check_rows(cache: Cache, value: int) -> None:
    for rows in cache.closed_rows(cache.position):
        for memory in rows.values():
            assert np.array_equal(memory, np.full_like(memory, value))


@pytest.fixture
def cache() -> Cache:
    return Cache(PLAN, FINGERPRINT)


def test_growing_keeps_the_rows_that_a_snapshot_leads_forward_to(cache: Cache) -> None:
    early, late = append(cache, 60, 1), append(cache, 140, 1)
    cache.restore(early)
    cache.grow(400)
    cache.restore(late)
    check_rows(cache, 1)


@pytest.mark.parametrize("back_to", [0, 1])
def test_a_branch_keeps_the_rows_that_a_snapshot_leads_forward_to(
    cache: Cache, back_to: int
) -> None:
    early = [append(cache, 20, 1), append(cache, 60, 1)]
    late = append(cache, 140, 1)
    branch = cache.branch(late)
    branch.restore(early[1])
    cache.restore(early[back_to])
    append(cache, 140, 2)
    branch.restore(late)
    check_rows(branch, 1)


def test_a_branch_that_is_reset_has_no_rows_to_go_forward_to(cache: Cache) -> None:
    late = append(cache, 140, 1)
    branch = cache.branch(late)
    branch.reset()
    with pytest.raises(SnapshotError, match="must still be in this cache"):
        branch.restore(late)


Meanwhile = Callable[[Cache, Cache, Snapshot], object]
MEANWHILE: dict[str, tuple[Meanwhile, bool]] = {
    "appends": (lambda cache, branch, early: append(branch, 150, 2), True),
    "its source appends": (lambda cache, branch, early: append(cache, 150, 2), True),
    "its source goes back": (lambda cache, branch, early: cache.restore(early), True),
    "its source grows": (lambda cache, branch, early: cache.grow(400), True),
    "its source goes back and appends": (
        lambda cache, branch, early: (cache.restore(early), append(cache, 150, 2)),
        False,
    ),
    "its source is reset and appends": (
        lambda cache, branch, early: (cache.reset(), append(cache, 150, 2)),
        False,
    ),
    "appends, then its source goes back and appends": (
        lambda cache, branch, early: (
            append(branch, 150, 2),
            cache.restore(early),
            append(cache, 150, 2),
        ),
        False,
    ),
}


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_a_branch_is_saved_as_it_was_or_not_at_all(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    act, saved = MEANWHILE[meanwhile]
    early, late = append(cache, 60, 1), append(cache, 140, 1)
    branch, path, n_writes = cache.branch(late), tmp_path / "saved", 0
    save_cache(path, cache.branch(early), tokens=[5] * 60)

    def write_slowly(file: object, data: memoryview) -> None:
        nonlocal n_writes
        n_writes += 1
        if n_writes == 3:  # tokens and snapshot are written, no row is
            act(cache, branch, early)
        write_all(file, data)  # type: ignore[arg-type]

    monkeypatch.setattr("mlx_dsv4.cache.file.write_all", write_slowly)
    if saved:
        save_cache(path, branch, tokens=[5] * 140)
    else:
        with pytest.raises(SnapshotError, match=r"140 must still be in this cache: .* meanwhile"):
            save_cache(path, branch, tokens=[5] * 140)
    loaded = load_cache(path, PLAN, FINGERPRINT).cache
    assert loaded.position == (140 if saved else 60)
    check_rows(loaded, 1)
    assert list(tmp_path.iterdir()) == [path]


def test_a_branch_is_saved_after_its_source_grew_and_overwrote_rows(
    cache: Cache, tmp_path: Path
) -> None:
    early, late = append(cache, 60, 1), append(cache, 140, 1)
    branch = cache.branch(late)
    cache.grow(400)  # the branch goes on reading the smaller buffers
    cache.restore(early)
    append(cache, 150, 2)
    save_cache(tmp_path / "saved", branch, tokens=[5] * 140)
    check_rows(load_cache(tmp_path / "saved", PLAN, FINGERPRINT).cache, 1)
