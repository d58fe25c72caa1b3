"""Cache files: layout by an independent reader; whatever is changed in one is refused."""

import copy
import errno
import os
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from cache_file import Parts, join, parse
from mlx_dsv4.cache import Cache, Fingerprint, file, load_cache, plan_cache, save_cache
from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.errors import (
    CacheStateError,
    FileFormatError,
    PlanError,
    PromptError,
    SnapshotError,
)
from mlx_dsv4.gguf.tiny import tiny_config

CONFIG = tiny_config(ratios=(4, 128), hash_layers=1)
PLAN = plan_cache(CONFIG, 300)
MARKED = Fingerprint(CONFIG, "bfloat16", "official", "cpu 1", "weights", "vocabulary")
POSITION = 257
TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, CONFIG.vocab, POSITION)]
LOGITS = np.random.default_rng(6).standard_normal(CONFIG.vocab).astype(np.float32)


def filled_cache(plan=PLAN, fingerprint: Fingerprint = MARKED, position: int = POSITION) -> Cache:
    """A cache whose every readable byte is random."""
    rng = np.random.default_rng(7)
    cache = Cache(plan, fingerprint)
    for rows in cache.closed_rows(position):
        for memory in rows.values():
            memory[:] = rng.integers(0, 256, memory.shape, np.uint8)
    cache.begin_at(position, rng.integers(0, 256, plan.snapshot_bytes, np.uint8))
    return cache


@pytest.fixture(scope="module")
def cache() -> Cache:
    return filled_cache()


@pytest.fixture(scope="module")
def saved(cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "cache"
    save_cache(path, cache, tokens=TOKENS, logits=LOGITS)
    return path


@pytest.fixture
def parts(saved: Path) -> Parts:
    return parse(saved)


@pytest.fixture
def load(tmp_path: Path) -> Callable[[bytes], object]:
    """Writes bytes to a file and loads it."""

    def write_and_load(data: bytes) -> object:
        path = tmp_path / "changed"
        path.write_bytes(data)
        return load_cache(path, PLAN, MARKED)

    return write_and_load


def test_the_sections_are_those_of_the_page(parts: Parts, cache: Cache) -> None:
    rows = {name: len(data) for name, data in parts.named.items()}
    row_bytes, index_bytes = 2 * CONFIG.head_dim, 2 * CONFIG.indexer_dim
    assert rows == {
        "tokens": 4 * POSITION,
        "logits": 4 * CONFIG.vocab,
        "snapshot": PLAN.snapshot_bytes,
        "compressed.0": POSITION // 4 * row_bytes,
        "indexer.0": POSITION // 4 * index_bytes,
        "compressed.1": POSITION // 128 * row_bytes,
    }
    assert parts.header.keys() == {"fingerprint", "position", "sections"}
    assert parts.header["position"] == POSITION
    assert parts.header["fingerprint"]["config"]["ratios"] == [4, 128]
    np.testing.assert_array_equal(np.frombuffer(parts.named["tokens"], "<i4"), TOKENS)
    np.testing.assert_array_equal(np.frombuffer(parts.named["logits"], "<f4"), LOGITS)
    layer = cache.layers[0]
    held = np.array(layer.attention_kv.view(mx.uint16)).view(np.uint8)
    assert parts.named["compressed.0"] == held[128 : 128 + POSITION // 4].tobytes()
    states = (*reversed(layer.compressor), *reversed(layer.indexer))
    first = b"".join([held[:128].tobytes(), *(np.array(state).tobytes() for state in states)])
    assert parts.named["snapshot"].startswith(first)


@pytest.mark.parametrize("capacity_tokens", [257, 300, 4096])
def test_a_file_is_loaded_into_any_capacity(saved: Path, cache: Cache, capacity_tokens) -> None:
    found = load_cache(saved, plan_cache(CONFIG, capacity_tokens), MARKED)
    assert (found.tokens, found.cache.position) == (TOKENS, POSITION)
    np.testing.assert_array_equal(found.logits, LOGITS)
    np.testing.assert_array_equal(found.cache.snapshot().data, cache.snapshot().data)
    pairs = zip(found.cache.closed_rows(POSITION), cache.closed_rows(POSITION), strict=True)
    for mine, theirs in pairs:
        assert mine.keys() == theirs.keys()
        for kind in mine:
            np.testing.assert_array_equal(mine[kind], theirs[kind])


@pytest.mark.parametrize("position", [0, 1, 3, 4, 127, 128])
@pytest.mark.parametrize("capacity_tokens", [128, 131])
def test_few_tokens(tmp_path: Path, position: int, capacity_tokens: int) -> None:
    small = filled_cache(plan_cache(CONFIG, max(position, 1)), MARKED, position)
    save_cache(tmp_path / "cache", small, tokens=TOKENS[:position])
    plan = plan_cache(CONFIG, capacity_tokens)
    found = load_cache(tmp_path / "cache", plan, MARKED)
    assert (found.tokens, found.logits) == (TOKENS[:position], None)
    np.testing.assert_array_equal(found.cache.snapshot().data, small.snapshot().data)


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of every value inside nested JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def other(value: Any) -> Any:
    """A value of the same type; for digests another digest."""
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    if isinstance(value, dict):
        return {**value, "more": 1}
    if isinstance(value, list):
        return value[:-1]
    return value + 1


def test_every_changed_field_of_the_header_is_refused(parts: Parts, load) -> None:
    refused = 0
    for *path, last in places(parts.header):
        for change in ("other", "type", "gone"):
            changed = copy.deepcopy(parts)
            inside: Any = changed.header
            for key in path:
                inside = inside[key]
            if change == "gone":
                del inside[last]
            else:
                inside[last] = other(inside[last]) if change == "other" else None
            with pytest.raises((FileFormatError, SnapshotError)) as refusal:
                load(changed.to_bytes())
            names = [str(key) for key in (*path, last) if isinstance(key, str)]
            assert any(name in str(refusal.value) for name in names), (path, last, refusal.value)
            refused += 1
    assert refused > 150


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numerics": "plain"}, r"fingerprint\.numerics must be 'official'; got 'plain'"),
        ({"arithmetic": "gpu 1"}, r"fingerprint\.arithmetic must be 'cpu 1'; got 'gpu 1'"),
        ({"model": "w"}, r"fingerprint\.model must be 'weights'; got 'w'"),
        ({"tokenizer": ""}, r"fingerprint\.tokenizer must be 'vocabulary'; got ''"),
    ],
)
def test_a_file_of_another_model_is_refused(parts: Parts, load, change, message: str) -> None:
    parts.header["fingerprint"] |= change
    with pytest.raises(SnapshotError, match=message):
        load(parts.to_bytes())


def test_another_row_format_and_too_small_a_plan_are_refused(saved: Path) -> None:
    plain = plan_cache(CONFIG, 300, row_dtype="float32")
    with pytest.raises(SnapshotError, match=r"row_format must be 'float32'; got 'bfloat16'"):
        load_cache(saved, plain, replace(MARKED, row_format="float32"))
    with pytest.raises(PlanError, match="the cache must hold 257 tokens; got a plan for 256"):
        load_cache(saved, plan_cache(CONFIG, 256), MARKED)


def test_every_flipped_byte_is_refused(saved: Path, parts: Parts, tmp_path: Path) -> None:
    data = bytearray(saved.read_bytes())
    sections = len(data) - sum(map(len, parts.sections))
    path = tmp_path / "flipped"
    for at in [*range(sections + 8), *range(sections + 8, len(data), 499), len(data) - 1]:
        mask = 0xFF if at % 2 else 1
        data[at] ^= mask
        path.write_bytes(data)
        with pytest.raises(FileFormatError):
            load_cache(path, PLAN, MARKED)
        data[at] ^= mask
    path.write_bytes(data)
    assert load_cache(path, PLAN, MARKED).tokens == TOKENS


def test_a_file_cut_anywhere_is_refused(saved: Path, parts: Parts, load) -> None:
    data = saved.read_bytes()
    ends = [len(data)]
    for section in reversed(parts.sections):
        ends.append(ends[-1] - len(section))
    for end in {0, 1, 39, 40, 41, *(e + d for e in ends for d in (-1, 0, 1))} - {len(data)}:
        with pytest.raises(FileFormatError, match=r"bytes|begins"):
            load(data[:end] if end < len(data) else data + b"\0")


def test_every_section_cut_is_refused(parts: Parts, load) -> None:
    for index, section in enumerate(parts.sections):
        for shorter in (section[:-1], section[: len(section) // 2], b"", section + b"\0"):
            changed = copy.deepcopy(parts)
            changed.sections[index] = shorter
            changed.digest_sections()
            with pytest.raises(FileFormatError, match="sections"):
                load(changed.to_bytes())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a saved cache has at least 40 bytes; the file has 0"),
        (bytes(100), r"a saved cache begins with b'DSV4ROWS'; got b'\\x00"),
        (join(b"{}", [], version=2), "version of the file must be 1; got 2"),
        (join(b"{", []), "the header must be JSON"),
        (join(b"[]", []), "the header must be a JSON object"),
        (join(b"[" * 100_000, []), "the header must be JSON"),
        (join(b"{}", []), "sections must be a list"),
        (join(b'{"sections": [{"name": "a", "n_bytes": -1}]}', []), "sections must be a list"),
        (join(b'{"sections": [[]]}', []), "sections must be a list"),
        (join(b'{"sections": []}', []), "must hold fingerprint, position and sections"),
        (join(b'{"sections": [], "position": 1.5, "fingerprint": {}}', []), "must hold"),
    ],
)
def test_what_is_no_cache_file_is_refused(load, data: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        load(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": TOKENS[:-1]}, "tokens must be the 257 ids .*; got 256"),
        ({"tokens": [*TOKENS[:-1], 1024]}, r"must be in 0\.\.1023; got 1024 at index 256"),
        ({"tokens": [*TOKENS[:-1], 1.5]}, r"must be integers; got 1\.5 at index 256"),
        ({"logits": LOGITS[:-1]}, r"logits must be \[1024\], one per token; got \[1023\]"),
    ],
)
def test_what_is_not_the_position_is_not_saved(
    cache: Cache, tmp_path: Path, change: dict, message: str
) -> None:
    with pytest.raises(PromptError, match=message):
        save_cache(tmp_path / "cache", cache, **({"tokens": TOKENS} | change))
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_position_is_saved_while_the_cache_goes_on(tmp_path: Path) -> None:
    cache = filled_cache()
    expected = cache.snapshot()
    rows = [{kind: m.copy() for kind, m in r.items()} for r in cache.closed_rows(POSITION)]
    with cache.step(3):
        pass
    save_cache(tmp_path / "cache", cache, tokens=TOKENS, snapshot=expected)
    found = load_cache(tmp_path / "cache", PLAN, MARKED).cache
    np.testing.assert_array_equal(found.snapshot().data, expected.data)
    for mine, theirs in zip(found.closed_rows(POSITION), rows, strict=True):
        assert all((mine[kind] == theirs[kind]).all() for kind in theirs)


def test_a_poisoned_cache_is_not_saved_but_its_snapshot_is(tmp_path: Path) -> None:
    cache = filled_cache()
    snapshot = cache.snapshot()
    cache.poison("test")
    path = tmp_path / "cache"
    with pytest.raises(CacheStateError, match="poisoned"):
        save_cache(path, cache, tokens=TOKENS)
    save_cache(path, cache, tokens=TOKENS, snapshot=snapshot)
    assert load_cache(path, PLAN, MARKED).tokens == TOKENS


def test_rows_that_are_gone_are_not_saved(saved: Path, tmp_path: Path) -> None:
    cache = filled_cache()
    early = cache.snapshot()
    with cache.step(1):
        pass
    late = cache.snapshot()
    cache.restore(early)
    with cache.step(2):
        pass
    path = tmp_path / "cache"
    path.write_bytes(saved.read_bytes())
    with pytest.raises(SnapshotError, match="rows before the snapshot's position 258"):
        save_cache(path, cache, tokens=[*TOKENS, 1], snapshot=late)
    assert load_cache(path, PLAN, MARKED).tokens == TOKENS
    assert list(tmp_path.iterdir()) == [path]


def test_rows_that_go_while_they_are_written_are_not_saved(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = filled_cache()
    early = cache.snapshot()
    with cache.step(1):
        pass

    def go_back_and_append(*args) -> None:
        cache.restore(early)
        with cache.step(1):
            pass
        monkeypatch.undo()
        file.write_all(*args)

    path = tmp_path / "cache"
    path.write_bytes(saved.read_bytes())
    monkeypatch.setattr(file, "write_all", go_back_and_append)
    with pytest.raises(SnapshotError, match="rows before the snapshot's position 258"):
        save_cache(path, cache, tokens=[*TOKENS, 1])
    assert load_cache(path, PLAN, MARKED).tokens == TOKENS
    assert list(tmp_path.iterdir()) == [path]


def test_memory_does_not_grow_with_the_context(tmp_path: Path) -> None:
    plan = plan_cache(V4_FLASH, 32_768)
    cache = Cache(plan)
    with cache.step(32_768):
        pass
    tracemalloc.start()
    save_cache(tmp_path / "cache", cache, tokens=range(32_768))
    saved_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    load_cache(tmp_path / "cache", plan, cache.fingerprint)
    loaded_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "cache").stat().st_size > 243_000_000
    assert max(saved_peak, loaded_peak) < 64 << 20


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(
    cache: Cache, tmp_path: Path, there: bool
) -> None:
    (tmp_path / "disk").mkdir()
    target, middle, link = (tmp_path / name for name in ("disk/cache", "disk/link", "link"))
    if there:
        target.write_bytes(b"of somebody")
    middle.symlink_to("cache")
    link.symlink_to("disk/link")
    save_cache(link, cache, tokens=TOKENS)
    assert (link.is_symlink(), middle.is_symlink(), target.is_symlink()) == (True, True, False)
    assert load_cache(target, PLAN, MARKED).tokens == TOKENS
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "disk", target, middle, link]


def test_links_to_one_another_are_refused(cache: Cache, tmp_path: Path) -> None:
    ring = [tmp_path / "a", tmp_path / "b"]
    ring[0].symlink_to(ring[1])
    ring[1].symlink_to(ring[0])
    with pytest.raises(OSError, match="symbolic links") as caught:
        save_cache(ring[0], cache, tokens=TOKENS)
    assert caught.value.filename == str(ring[0])
    assert sorted(tmp_path.iterdir()) == ring


def test_a_full_disk_is_named_by_the_path(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file, "write_all", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        save_cache(tmp_path / "cache", cache, tokens=TOKENS)
    assert caught.value.filename == str(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "code"),
    [("no/where", errno.ENOENT), ("file/x", errno.ENOTDIR), ("x" * 250, errno.ENAMETOOLONG)],
)
def test_a_path_that_cannot_be_written_is_named_as_it_was_given(
    tmp_path: Path, name: str, code: int
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=os.strerror(code)) as caught, file.replacing(tmp_path / name):
        pass
    assert caught.value.filename == str(tmp_path / name)


def test_a_folder_or_pipe_is_no_saved_cache(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path, "a directory"), (tmp_path / "pipe", "a device, socket or pipe")):
        with pytest.raises(FileFormatError, match=f"{path}: must be a saved cache; got {kind}"):
            load_cache(path, PLAN, MARKED)
