"""Saved caches as the second level: what a slot held is found again, by another process too."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cold import GREEDY, check_cold, load, random_prompt
from mlx_dsv4 import Engine, Params
from mlx_dsv4.cache import CacheStore
from mlx_dsv4.engine import Serving
from tiny_models import tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def saved(folder: Path) -> list[int]:
    """Tokens of the files, ascending."""
    return sorted(entry.n_tokens for entry in CacheStore(folder, 1 << 40).entries())


def settle(engine: Engine) -> None:
    """Until what is idle has been saved: that is done before the next call is."""
    for _ in range(3):
        engine.status()


def test_a_restarted_engine_goes_on_without_prefill(folder: Path) -> None:
    with load(store=folder) as engine:
        first = engine.generate(random_prompt(300), GREEDY)
    assert saved(folder) == [292, 307]
    with load(store=folder) as engine:
        result = engine.generate([*first.prompt, *first.tokens, 5, 6], GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("disk", 307)
        assert result.reuse.reason == "a saved cache has its first 307 tokens"
        check_cold(engine, result, GREEDY)


def test_the_saved_anchor_serves_where_the_end_was_rendered_differently(folder: Path) -> None:
    with load(store=folder) as engine:
        engine.generate(random_prompt(300), GREEDY)
    with load(store=folder) as engine:
        result = engine.generate([*random_prompt(295), 5, 6, 7], GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("disk", 292)
        check_cold(engine, result, GREEDY)
        # It is an anchor in memory, too.
        other = engine.generate([*random_prompt(293), 9, 9], GREEDY)
        assert (other.reuse.kind, other.reuse.tokens) == ("anchor", 292)
        check_cold(engine, other, GREEDY)


def test_another_process_goes_on(folder: Path) -> None:
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from cold import GREEDY, load, random_prompt
with load({str(tiny_model().path)!r}, store={str(folder)!r}) as engine:
    print(*engine.generate(random_prompt(300), GREEDY).tokens)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tokens = [int(word) for word in done.stdout.split()]
    with load(store=folder) as engine:
        result = engine.generate([*random_prompt(300), *tokens, 5], GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("disk", 307)
        check_cold(engine, result, GREEDY)


def test_what_a_slot_held_is_kept_when_it_is_needed_for_something_else(folder: Path) -> None:
    with load(store=folder, slots=1) as engine:
        one = engine.generate(random_prompt(300, 1), GREEDY)
        engine.generate(random_prompt(200, 2), GREEDY)
        back = engine.generate([*one.prompt, *one.tokens, 5], GREEDY)
        assert (back.reuse.kind, back.reuse.tokens) == ("disk", 307)
        check_cold(engine, back, GREEDY)


def test_it_is_kept_even_if_nothing_is_ever_idle(folder: Path) -> None:
    with load(store=folder, slots=1) as engine:
        streams = [engine.stream(random_prompt(300, seed), GREEDY) for seed in (1, 2)]
        one, _ = [stream.result() for stream in streams]
        back = engine.generate([*one.prompt, *one.tokens, 5], GREEDY)
        assert (back.reuse.kind, back.reuse.tokens) == ("disk", 307)


def test_it_is_kept_where_another_conversation_shares_bos_alone(folder: Path) -> None:
    """A short prompt goes on from the anchor after BOS; nothing is idle in between."""
    with load(store=folder, slots=1) as engine:
        never = dict.fromkeys(engine.tokenizer.stop_ids, -1e3)
        params = Params(max_tokens=200, seed=1, logit_bias=never)
        ask = [{"role": "user", "content": "tell me"}]
        streams = [engine.stream_chat(ask, params)]
        streams.append(engine.stream_chat([{"role": "user", "content": "another"}], GREEDY))
        one, other = [stream.result() for stream in streams]
        assert (other.reuse.kind, other.reuse.tokens) == ("anchor", 1)
    assert len(one.prompt) + 199 in saved(folder)


def test_what_is_idle_is_saved_before_the_engine_is_closed(folder: Path) -> None:
    with load(store=folder) as engine:
        engine.generate(random_prompt(300), GREEDY)
        settle(engine)
        assert saved(folder) == [292, 307]


def test_a_restarted_engine_goes_on_with_a_conversation(folder: Path) -> None:
    """Answers of random weights are cut into tokens as no encoder would, and end in odd bytes."""
    system = {"role": "system", "content": "Rows, spans and windows. " * 40}
    messages = [system, {"role": "user", "content": "Go on."}]
    never = dict.fromkeys(range(1000, 1024), -1e3)  # control tokens
    params = Params(max_tokens=30, seed=4, logit_bias=never)
    with load(store=folder) as engine:
        first = engine.chat(messages, params, thinking=False)
        held = [*first.prompt, *first.tokens[:-1]]
    messages += [first.message, {"role": "user", "content": "And then?"}]
    with load(store=folder) as engine:
        second = engine.chat(messages, params, thinking=False)
        assert (second.reuse.kind, second.reuse.tokens) == ("disk", len(held))
        assert list(second.prompt[: len(held)]) == held
        check_cold(engine, second, params)
    (kept,) = folder.glob("turns-*.jsonl")
    assert "Go on" not in kept.read_text()


def test_memory_comes_before_disk(folder: Path) -> None:
    with load(store=folder) as engine:
        first = engine.generate(random_prompt(300), GREEDY)
        settle(engine)
        result = engine.generate([*first.prompt, *first.tokens, 5], GREEDY)
        assert result.reuse.kind == "live"


def test_a_whole_prompt_is_found_with_its_logits(folder: Path) -> None:
    with load(store=folder) as engine:
        first = engine.generate(random_prompt(300), GREEDY)
    prompt = [*first.prompt, *first.tokens[:-1]]
    with load(store=folder) as engine:
        result = engine.generate(prompt, GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("disk", 307)
        assert result.tokens[0] == first.tokens[-1]
        check_cold(engine, result, GREEDY)


def test_short_conversations_are_not_worth_a_file(folder: Path) -> None:
    with load(store=folder) as engine:
        engine.generate(random_prompt(100), GREEDY)
    assert saved(folder) == []


def test_short_beginnings_are_not_worth_a_file(folder: Path) -> None:
    """The end of the system text and of the prompt of a conversation that is long enough."""
    with load(store=folder, slots=1) as engine:
        never = dict.fromkeys(engine.tokenizer.stop_ids, -1e3)
        ask = [{"role": "user", "content": "tell me of rows and windows"}]
        first = engine.chat(ask, Params(max_tokens=200, seed=1, logit_bias=never))
        settle(engine)
        assert engine.status().slots[0].anchors == (1, len(first.prompt) - 8)
        engine.chat([{"role": "user", "content": "and another thing of the rows"}], GREEDY)
    assert saved(folder) == [len(first.prompt) + 199]


def test_what_a_session_loads_from_a_file_is_kept_too(folder: Path, tmp_path: Path) -> None:
    with load() as engine, engine.session() as session:
        first = session.generate(random_prompt(300), GREEDY)
        session.save(tmp_path / "by hand")
    with load(store=folder) as engine, engine.session() as session:
        session.load(tmp_path / "by hand")
    assert saved(folder) == [307]
    with load(store=folder) as engine:
        result = engine.generate([*first.prompt, *first.tokens, 5], GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("disk", 307)
        check_cold(engine, result, GREEDY)


def test_another_models_files_are_passed_over(folder: Path) -> None:
    with load(store=folder) as engine:
        engine.generate(random_prompt(300), GREEDY)
    for path, numerics in ((tiny_model(seed=1).path, "official"), (None, "plain")):
        with load(path, numerics=numerics, store=folder) as other:
            result = other.generate(random_prompt(300), GREEDY)
            assert result.reuse.kind == "reset"
            check_cold(other, result, GREEDY)


def damage(folder: Path, n_tokens: int) -> None:
    """Change bytes of the saved cache that has so many tokens."""
    (path,) = [e.path for e in CacheStore(folder, 1 << 40).entries() if e.n_tokens == n_tokens]
    with path.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\xff\x00\xff")


def test_a_damaged_file_is_removed_and_the_next_one_taken(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with load(store=folder) as engine:
        first = engine.generate(random_prompt(300), GREEDY)
    damage(folder, 307)
    with load(store=folder) as engine:
        result = engine.generate([*first.prompt, *first.tokens, 5], GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("disk", 292)
        check_cold(engine, result, GREEDY)
    assert "removing a damaged file" in caplog.text


def test_a_disk_that_is_full_costs_a_warning_and_no_answer(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mlx_dsv4.cache.store.save_cache", full)
    with load(store=folder, slots=1) as engine, caplog.at_level(logging.WARNING):
        for seed in (1, 2):
            check_cold(engine, engine.generate(random_prompt(200, seed), GREEDY), GREEDY)
    assert "slot 0 is not saved: [Errno 28] No space left on device" in caplog.text
    assert saved(folder) == []


def test_a_folder_that_cannot_be_written_still_serves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(store=folder) as engine:
        first = engine.generate(random_prompt(300), GREEDY)
    damage(folder, 307)

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("utime", "unlink"):
        monkeypatch.setattr(os, name, read_only)
    with load(store=folder) as engine:
        result = engine.generate([*first.prompt, *first.tokens, 5], GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("disk", 292)
        check_cold(engine, result, GREEDY)


@pytest.mark.parametrize("name", ["entries", "_open"])
def test_a_folder_that_cannot_be_read_costs_a_warning_and_no_answer(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(store=folder) as engine:
        engine.generate(random_prompt(300), GREEDY)

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(CacheStore, name, broken)
    with load(store=folder) as engine, caplog.at_level(logging.WARNING):
        result = engine.generate(random_prompt(300), GREEDY)
        assert result.reuse.kind == "reset"
        check_cold(engine, result, GREEDY)
    assert "slot 0 reads no saved cache: [Errno 5] Input/output error" in caplog.text


def test_the_budget_holds(folder: Path) -> None:
    budget = 3_000_000
    with load(store=folder, slots=1, serving=Serving(store_bytes=budget)) as engine:
        for seed in range(6):
            engine.generate(random_prompt(300, seed), GREEDY)
    files = CacheStore(folder, 1 << 40).entries()
    assert 0 < sum(entry.n_bytes for entry in files) <= budget


def test_two_engines_share_a_folder(folder: Path) -> None:
    with load(store=folder) as one, load(store=folder) as other:
        first = one.generate(random_prompt(300), GREEDY)
        settle(one)
        result = other.generate([*first.prompt, *first.tokens, 5], GREEDY)
        assert result.reuse.kind == "disk"
        check_cold(other, result, GREEDY)
