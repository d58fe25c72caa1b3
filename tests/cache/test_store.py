"""A folder of saved caches: what is found, what is evicted, what damage and other processes do."""

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlx_dsv4.cache import Cache, CacheStore, Fingerprint, SavedCache, file, plan_cache
from mlx_dsv4.errors import BudgetError, PlanError, PromptError
from mlx_dsv4.gguf.tiny import tiny_config

CONFIG = tiny_config(ratios=(4,), hash_layers=1)
PLAN = plan_cache(CONFIG, 300)
MARKED = Fingerprint(CONFIG, "bfloat16", "official", "cpu 1", "weights", "vocabulary")
DAY = 24 * 3600
LOGITS = np.arange(CONFIG.vocab, dtype=np.float32)


def tokens_of(seed: int, n_tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, CONFIG.vocab, n_tokens).tolist()


def bytes_of(tokens: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
    """What a cache of these tokens holds, made of them alone."""
    return np.random.default_rng([len(tokens), *tokens]).integers(0, 256, shape, np.uint8)


def cache_of(tokens: Sequence[int], fingerprint: Fingerprint = MARKED) -> Cache:
    cache = Cache(PLAN, fingerprint)
    for rows in cache.closed_rows(len(tokens)):
        for memory in rows.values():
            memory[:] = bytes_of(tokens, memory.shape)
    cache.begin_at(len(tokens), bytes_of(tokens, (PLAN.snapshot_bytes,)))
    return cache


def save(store: CacheStore, tokens: Sequence[int], **more: object) -> Path:
    return store.save(cache_of(tokens), tokens=tokens, **more)


def check(found: SavedCache | None, tokens: Sequence[int]) -> None:
    """The cache of exactly these tokens was found, and holds what it was saved with."""
    assert found is not None
    assert found.tokens == list(tokens)
    for rows in found.cache.closed_rows(len(tokens)):
        for memory in rows.values():
            np.testing.assert_array_equal(memory, bytes_of(tokens, memory.shape))


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    return CacheStore(tmp_path / "store", 1 << 30)


@pytest.fixture
def size(tmp_path: Path) -> int:
    """Bytes of a file of 100 tokens."""
    return save(CacheStore(tmp_path / "size", 1 << 30), tokens_of(0, 100)).stat().st_size


def test_the_longest_prefix_is_found(store: CacheStore) -> None:
    tokens = tokens_of(1, 200)
    assert store.load(tokens, PLAN, MARKED) is None
    for n_tokens in (3, 50, 128, 129):
        save(store, tokens[:n_tokens])
    save(store, [*tokens[:149], (tokens[149] + 1) % CONFIG.vocab])  # longer, and no prefix
    check(store.load(tokens, PLAN, MARKED), tokens[:129])
    check(store.load(tokens[:128] + tokens_of(2, 30), PLAN, MARKED), tokens[:128])
    check(store.load(tokens[:60], PLAN, MARKED), tokens[:50])
    assert store.load(tokens[:2], PLAN, MARKED) is None
    assert store.load(tokens_of(9, 200), PLAN, MARKED) is None


def test_a_whole_prompt_is_found_if_its_logits_are_there(store: CacheStore) -> None:
    tokens = tokens_of(1, 60)
    save(store, tokens[:40])
    path = save(store, tokens)
    check(store.load(tokens, PLAN, MARKED), tokens[:40])
    assert save(store, tokens, logits=LOGITS) == path
    found = store.load(tokens, PLAN, MARKED)
    check(found, tokens)
    np.testing.assert_array_equal(found.logits, LOGITS)


@pytest.mark.parametrize("change", [{"model": "w"}, {"numerics": "plain"}, {"arithmetic": "gpu 1"}])
def test_files_of_other_models_are_passed_over(store: CacheStore, change: dict) -> None:
    tokens = tokens_of(1, 60)
    store.save(cache_of(tokens, replace(MARKED, **change)), tokens=tokens)
    assert store.load([*tokens, 1], PLAN, MARKED) is None
    save(store, tokens[:7])
    check(store.load([*tokens, 1], PLAN, MARKED), tokens[:7])


def test_foreign_files_are_left_alone(store: CacheStore) -> None:
    tokens = tokens_of(1, 60)
    for name in ("a.txt", "x.dsv4cache", "a-b-c.dsv4cache", "a-1-c-d.dsv4cache"):
        (store.folder / name).write_text("mine")
    (store.folder / "folder-1-a.dsv4cache").mkdir()
    save(store, tokens)
    check(store.load([*tokens, 1], PLAN, MARKED), tokens)
    assert (store.folder / "x.dsv4cache").read_text() == "mine"


def test_a_position_is_written_once(store: CacheStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tokens_of(1, 60)
    path = save(store, tokens, logits=LOGITS)
    os.utime(path, (1, 1))
    monkeypatch.setattr(file, "write_all", lambda *_: pytest.fail("must not write"))
    assert save(store, tokens) == path
    assert time.time() - path.stat().st_mtime < 60  # it counts as used


@pytest.mark.parametrize("tokens", [[1.5], ["a"], [None]])
def test_tokens_that_are_no_integers_are_refused(store: CacheStore, tokens: list) -> None:
    with pytest.raises(PromptError, match="token ids must be integers"):
        store.find(tokens, MARKED)


def test_the_least_useful_file_goes_first(store: CacheStore, size: int) -> None:
    long, old, new = tokens_of(1, 250), tokens_of(2, 100), tokens_of(3, 100)
    for tokens, age in ((long, 1.2), (old, 0.5), (new, 0.1)):
        path = save(store, tokens)
        os.utime(path, (time.time() - age * DAY,) * 2)
    store.budget_bytes = int(3.5 * size)
    last = tokens_of(4, 100)
    save(store, last)
    assert store.load([*old, 1], PLAN, MARKED) is None
    # A longer one saves more tokens per byte, and so outlives a shorter one that is younger.
    for tokens in (long, new, last):
        check(store.load([*tokens, 1], PLAN, MARKED), tokens)


def test_being_found_makes_a_file_younger(store: CacheStore, size: int) -> None:
    kept, gone = tokens_of(1, 100), tokens_of(2, 100)
    for tokens, age in ((kept, 9), (gone, 2)):
        os.utime(save(store, tokens), (time.time() - age * DAY,) * 2)
    check(store.load([*kept, 1], PLAN, MARKED), kept)
    store.budget_bytes = int(2.5 * size)
    save(store, tokens_of(3, 100))
    check(store.load([*kept, 1], PLAN, MARKED), kept)
    assert store.load([*gone, 1], PLAN, MARKED) is None


def test_the_file_just_saved_stays(store: CacheStore, size: int) -> None:
    long, short = tokens_of(1, 250), tokens_of(2, 100)
    save(store, long)
    store.budget_bytes = int(1.5 * size)
    path = save(store, short)  # less useful than the other one
    assert [entry.path for entry in store.entries()] == [path]


def test_a_file_that_is_open_stays(
    store: CacheStore, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokens_of(1, 100)
    save(store, tokens)
    with store.find([*tokens, 1], MARKED) as found:
        store.budget_bytes = int(1.5 * size)
        with caplog.at_level(logging.WARNING):
            save(store, tokens_of(2, 100))
        assert f"exceeds its budget by {2 * size - store.budget_bytes} bytes in use" in caplog.text
        check(found.load(PLAN, MARKED), tokens)
    store.evict()
    assert len(store.entries()) == 1


def test_a_file_larger_than_the_budget_is_refused(tmp_path: Path, size: int) -> None:
    store = CacheStore(tmp_path / "store", size)
    path = save(store, tokens_of(1, 100))  # exactly as large
    message = r"a saved cache of 104 tokens has \d+ bytes; the store .* may hold"
    with pytest.raises(BudgetError, match=message):
        save(store, tokens_of(2, 104))
    assert list(store.folder.glob("*.dsv4cache")) == [path]
    with pytest.raises(BudgetError, match="budget_bytes must be an integer of at least 1; got 0"):
        CacheStore(tmp_path / "other", 0)


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("where", ["header", "tokens", "rows", "cut", "empty", "name"])
def test_a_damaged_file_is_removed_and_the_next_one_taken(
    store: CacheStore, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    tokens = tokens_of(1, 120)
    save(store, tokens[:60])
    path = save(store, tokens[:100])
    if where == "name":  # another file under this name: another key
        path.write_bytes(save(store, tokens_of(5, 100)).read_bytes())
    elif where in ("cut", "empty"):
        os.truncate(path, 0 if where == "empty" else path.stat().st_size - 1)
    else:
        with file.SectionFile(path) as found:
            sections = path.stat().st_size - sum(found.n_bytes.values())
        damage(path, {"header": 60, "tokens": sections + 5, "rows": path.stat().st_size - 9}[where])
    with caplog.at_level(logging.WARNING):
        check(store.load(tokens, PLAN, MARKED), tokens[:60])
    assert "removing a damaged file" in caplog.text
    assert str(path) in caplog.text
    assert not path.exists()


def test_a_damaged_file_is_written_again(store: CacheStore) -> None:
    tokens = tokens_of(1, 100)
    path = save(store, tokens)
    damage(path, path.stat().st_size - 9)
    assert save(store, tokens) == path
    check(store.load([*tokens, 1], PLAN, MARKED), tokens)


def test_odd_files_do_not_stop_the_store(store: CacheStore, size: int) -> None:
    tokens = tokens_of(1, 100)
    name = save(store, tokens).name
    kind, _, key = name.removesuffix(".dsv4cache").split("-")
    (store.folder / f"{kind}-7-{key}.dsv4cache").touch()
    (store.folder / f"{kind}-8-{key}.dsv4cache").mkdir()
    os.mkfifo(store.folder / f"{kind}-9-{key}.dsv4cache")
    os.utime(store.folder / name, (time.time() + 2000 * DAY,) * 2)
    store.budget_bytes = int(1.5 * size)
    last = tokens_of(2, 100)
    save(store, last)
    assert not (store.folder / name).exists()
    check(store.load([*last, 1], PLAN, MARKED), last)


def test_a_file_of_another_version_is_passed_over(store: CacheStore) -> None:
    tokens = tokens_of(1, 120)
    save(store, tokens[:60])
    path = save(store, tokens[:100])
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    check(store.load(tokens, PLAN, MARKED), tokens[:60])
    assert path.exists()


def test_a_prefix_that_the_plan_cannot_hold_is_passed_over(store: CacheStore) -> None:
    tokens = tokens_of(1, 200)
    save(store, tokens[:60])
    save(store, tokens[:150], logits=LOGITS)
    small = plan_cache(CONFIG, 149)
    check(store.load(tokens, small, MARKED), tokens[:60])
    check(store.load(tokens[:150], small, MARKED), tokens[:60])
    exact = plan_cache(CONFIG, 60)
    check(store.load(tokens, exact, MARKED), tokens[:60])


def test_a_plan_of_another_row_format_removes_nothing(store: CacheStore) -> None:
    tokens = tokens_of(1, 60)
    save(store, tokens)
    with pytest.raises(PlanError, match="must be of the fingerprint's model and rows"):
        store.load([*tokens, 1], plan_cache(CONFIG, 300, row_dtype="float32"), MARKED)
    check(store.load([*tokens, 1], PLAN, MARKED), tokens)


def test_a_closed_file_can_be_evicted(store: CacheStore) -> None:
    tokens = tokens_of(1, 60)
    save(store, tokens)
    found = store.find([*tokens, 1], MARKED)
    found.close()
    store.budget_bytes = 1
    store.evict()
    assert store.entries() == []


def save_slowly(folder: Path, tokens: list[int]) -> None:
    """Save, one piece of the file per second."""
    write_all = file.write_all

    def slow(*args) -> None:
        write_all(*args)
        time.sleep(1)

    file.write_all = slow
    save(CacheStore(folder, 1 << 30), tokens)


def partials(store: CacheStore) -> list[Path]:
    return list(store.folder.glob("*.partial")) + list(store.folder.glob(".*.partial"))


def test_a_killed_writer_leaves_the_earlier_file(store: CacheStore) -> None:
    tokens = tokens_of(1, 100)
    path = save(store, tokens)
    path.rename(path.with_suffix(".away"))
    writer = multiprocessing.get_context("spawn").Process(
        target=save_slowly, args=(store.folder, tokens)
    )
    writer.start()
    while not any(partial.stat().st_size for partial in partials(store)):
        time.sleep(0.01)
        assert writer.is_alive()
    path.with_suffix(".away").rename(path)
    (partial,) = set(partials(store))
    os.utime(partial, (1, 1))
    store.evict()
    assert partial.exists()  # its writer lives
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    check(store.load([*tokens, 1], PLAN, MARKED), tokens)
    assert partial.exists()
    os.utime(partial, (1, 1))
    store.evict()
    assert not partial.exists()


def test_a_full_disk_leaves_the_earlier_file(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_of(1, 100)
    save(store, tokens)
    written = []

    def full(*_: object) -> None:
        written.append(1)
        if len(written) > 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "write_all", full)
    with pytest.raises(OSError, match="No space left"):
        save(store, tokens, logits=LOGITS)
    assert partials(store) == []
    check(store.load([*tokens, 1], PLAN, MARKED), tokens)


def hammer(folder: Path, seed: int, budget_bytes: int, seconds: float) -> int:
    """Save and load at random; the number of caches that were found."""
    store, rng, n_found = CacheStore(folder, budget_bytes), np.random.default_rng(seed), 0
    end = time.time() + seconds
    while time.time() < end:
        tokens = tokens_of(int(rng.integers(6)), int(rng.integers(1, 8)) * 10)
        if rng.random() < 0.5:
            save(store, tokens, logits=LOGITS if rng.random() < 0.5 else None)
        else:
            found = store.load(tokens, PLAN, MARKED)
            if found is not None:
                check(found, tokens[: len(found.tokens)])
                n_found += 1
    return n_found


def test_two_processes_share_a_folder(store: CacheStore, size: int) -> None:
    budget_bytes = 6 * size
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        calls = [(store.folder, seed, budget_bytes, 4.0) for seed in (1, 2)]
        found = pool.starmap(hammer, calls)
    assert min(found) > 10
    assert partials(store) == []
    assert sum(entry.n_bytes for entry in store.entries()) <= budget_bytes


def test_a_file_that_cannot_be_opened_is_passed_over(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tokens_of(1, 40)
    save(store, tokens[:20])
    longest = save(store, tokens[:30])
    is_open = Path.open

    def denied(path: Path, *mode: object, **more: object) -> object:
        if path == longest:
            raise PermissionError(13, "Permission denied", str(path))
        return is_open(path, *mode, **more)

    monkeypatch.setattr(Path, "open", denied)
    check(store.load(tokens, PLAN, MARKED), tokens[:20])
    assert f"passing over a file: [Errno 13] Permission denied: '{longest}'" in caplog.text
    assert longest.exists()
