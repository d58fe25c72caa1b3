"""Caches without a model whose bytes follow from their tokens, and processes that use them."""

import os
import random
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache import Cache, CacheStore, Fingerprint, SavedCache, file, plan_cache
from mlx_dsv4.cache.saved import saved_bytes
from mlx_dsv4.gguf.tiny import tiny_config

CONFIG = tiny_config()
PLAN = plan_cache(CONFIG, 160)
FINGERPRINT = Fingerprint(CONFIG, PLAN.row_dtype, model="first")
OTHER = Fingerprint(CONFIG, PLAN.row_dtype, model="other")


def tokens_of(seed: int, n: int) -> list[int]:
    """The first ``n`` tokens of an endless text."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, CONFIG.vocab, n)]


def logits_of(tokens: Sequence[int]) -> NDArray[np.float32]:
    return np.random.default_rng([0, *tokens]).normal(size=CONFIG.vocab).astype(np.float32)


def filled(tokens: Sequence[int], fingerprint: Fingerprint = FINGERPRINT) -> Cache:
    """A cache at the end of tokens; its bytes are noise that follows from them and the model."""
    cache = Cache(PLAN, fingerprint)
    noise = np.random.default_rng([*fingerprint.model.encode(), *tokens])
    for rows in cache.closed_rows(len(tokens)):
        for memory in rows.values():
            memory[:] = noise.integers(0, 256, memory.shape, np.uint8)
    cache.begin_at(len(tokens), noise.integers(0, 256, PLAN.snapshot_bytes, np.uint8))
    return cache


def check(
    saved: SavedCache | None, tokens: Sequence[int], fingerprint: Fingerprint = FINGERPRINT
) -> None:
    """Fail unless a loaded cache is that of the tokens, to the byte."""
    assert saved is not None
    assert saved.tokens == list(tokens)
    expected = filled(tokens, fingerprint)
    assert saved.cache.fingerprint == fingerprint
    assert np.array_equal(saved.cache.snapshot().data, expected.snapshot().data)
    for ours, theirs in zip(
        saved.cache.closed_rows(len(tokens)), expected.closed_rows(len(tokens)), strict=True
    ):
        for kind, memory in ours.items():
            assert np.array_equal(memory, theirs[kind])
    if saved.logits is not None:
        assert np.array_equal(saved.logits, logits_of(tokens))


TEXT = tokens_of(0, 150)
DAY = 24 * 3600.0
FILE_BYTES = saved_bytes(PLAN, filled(TEXT).snapshot(), has_logits=True)  # the largest here


def save(
    store: CacheStore,
    tokens: list[int],
    *,
    fingerprint: Fingerprint = FINGERPRINT,
    logits: bool = False,
    days: float = 0.0,
) -> Path:
    """Save a cache of these tokens, as if that was some days ago."""
    path = store.save(
        filled(tokens, fingerprint), tokens=tokens, logits=logits_of(tokens) if logits else None
    )
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def found(store: CacheStore, tokens: list[int], fingerprint: Fingerprint = FINGERPRINT) -> int:
    """Position of the file that is found; -1 if none is."""
    file = store.find(tokens, fingerprint)
    if file is None:
        return -1
    with file:
        return file.position


def names(store: CacheStore) -> set[str]:
    return {path.name for path in store.folder.iterdir()} - {".lock"}


def within(store: CacheStore, n_files: float) -> CacheStore:
    """The same folder, for at most so many files."""
    return CacheStore(store.folder, int(n_files * FILE_BYTES))


def save_slowly(folder: Path, tokens: list[int], half_written: Event) -> None:
    """A process that never gets further than half of a save."""
    write_all = file.write_all

    def write_half(target: object, data: memoryview) -> None:
        write_all(target, data[: len(data) // 2])
        half_written.set()
        time.sleep(60)

    file.write_all = write_half
    CacheStore(folder, 10**9).save(filled(tokens), tokens=tokens, logits=logits_of(tokens))


def keep_open(folder: Path, tokens: list[int], opened: Event, close: Event) -> None:
    """A process that has the file of these tokens open, then loads it."""
    saved = CacheStore(folder, 10**9).find(tokens, FINGERPRINT)
    assert saved is not None
    opened.set()
    close.wait(60)
    check(saved.load(PLAN, FINGERPRINT), tokens[: saved.position])


def hammer(folder: Path, budget_bytes: int, seed: int, seconds: float, report: Path) -> None:
    """A process that saves and loads at random, and checks every byte it gets."""
    store, choose = CacheStore(folder, budget_bytes), random.Random(seed)
    saves = hits = misses = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = tokens_of(choose.randrange(3), 150)
        tokens = text[: choose.choice((4, 20, 60, 130))]
        fingerprint = choose.choice((FINGERPRINT, OTHER))
        if choose.random() < 0.4:
            logits = logits_of(tokens) if choose.random() < 0.5 else None
            store.save(filled(tokens, fingerprint), tokens=tokens, logits=logits)
            saves += 1
            continue
        saved = store.load(tokens, PLAN, fingerprint)
        if saved is None:
            misses += 1
            continue
        n = saved.cache.position
        assert n < len(tokens) or saved.logits is not None
        check(saved, text[:n], fingerprint)
        hits += 1
    report.write_text(f"{saves} {hits} {misses} {len(os.listdir('/dev/fd'))}")
