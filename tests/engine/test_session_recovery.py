"""Sessions that are cancelled, fail, are saved or closed: what they hold afterwards, and that it
answers as if nothing had been."""

from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import mlx.core as mx
import pytest

from cold import GREEDY, check_cold, cold_tokens, load, random_prompt
from mlx_dsv4 import Engine, Params, Session
from mlx_dsv4.cache import Cache
from mlx_dsv4.engine import Serving, Text
from mlx_dsv4.errors import (
    AllocationError,
    CacheStateError,
    ClosedError,
    LogitsError,
    PlanError,
)


def test_leaving_the_loop_cancels_and_the_session_goes_on(engine: Engine, session: Session) -> None:
    prompt = random_prompt(150)
    for event in session.stream(prompt, Params(seed=1)):
        if isinstance(event, Text):
            break
    result = session.generate([*prompt, *random_prompt(5, 1)], GREEDY)
    assert result.reuse.tokens in (142, 150)
    check_cold(engine, result, GREEDY)


def test_cancelling_says_so_and_keeps_what_was_read(engine: Engine, session: Session) -> None:
    stream = session.stream(random_prompt(150), Params(seed=1))
    for event in stream:
        if isinstance(event, Text):
            stream.cancel()
    result = stream.result()
    assert result.finish_reason == "cancelled"
    assert session.tokens == (*result.prompt, *result.tokens[:-1])
    params = Params(seed=1, max_tokens=len(result.tokens))
    assert list(result.tokens) == cold_tokens(engine, result.prompt, params)
    longer = session.generate([*session.tokens, 5], GREEDY)
    assert longer.reuse.kind == "live"
    check_cold(engine, longer, GREEDY)


def test_a_prompt_that_was_cancelled_half_way_is_read_on(engine: Engine, session: Session) -> None:
    """Logits of an earlier position must not answer for it."""
    session.generate(random_prompt(200), replace(GREEDY, max_tokens=1))
    prompt = random_prompt(590)
    stream = session.stream(prompt, GREEDY)
    stream.cancel()
    assert stream.result().finish_reason == "cancelled"
    read = len(session.tokens)
    result = session.generate(prompt, GREEDY)
    assert result.reuse.tokens == (read if read < 590 else 582)
    check_cold(engine, result, GREEDY)


@pytest.fixture
def small_slices() -> Iterator[Engine]:
    """Prompts are read in calls of 128 tokens, between which they can be cancelled."""
    with load(serving=Serving(chunk=1), slots=1) as engine:
        yield engine


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_cancel_between_slices(
    small_slices: Engine, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    engine, prompt = small_slices, random_prompt(590)
    with engine.session() as session:
        stop_after(monkeypatch, after, lambda: stream.cancel())
        stream = session.stream(prompt, GREEDY)
        assert stream.result().finish_reason == "cancelled"
        monkeypatch.undo()
        assert session.tokens == tuple(prompt[: len(session.tokens)])
        # Exactly what was read, in whole slices, and no logits to answer from.
        assert 128 <= len(session.tokens) < 590
        result = session.generate(session.tokens, GREEDY)
        assert result.reuse.kind in ("reset", "anchor")
        check_cold(engine, result, GREEDY)
        whole = session.generate(prompt, GREEDY)
        assert whole.reuse.tokens >= 128 or after == 1  # whose anchor is at 120
        check_cold(engine, whole, GREEDY)


def test_going_back_forgets_the_logits_of_what_came_after() -> None:
    """Even if nothing was read since: a cancel may come first."""
    with load(serving=Serving(decode_quantum=10_000)) as engine, engine.session() as session:
        session.generate(random_prompt(200), GREEDY)
        never = dict.fromkeys(engine.tokenizer.stop_ids, -1e3)
        decoding = iter(engine.stream(random_prompt(30), Params(temperature=0, logit_bias=never)))
        next(event for event in decoding if isinstance(event, Text))  # prompts wait from here on
        stream = session.stream([*random_prompt(200), *random_prompt(50, 1)], GREEDY)
        assert next(iter(stream)).reuse.tokens == 192
        assert stream.result().finish_reason == "cancelled"
        decoding.close()
        assert session.tokens == tuple(random_prompt(192))
        result = session.generate(random_prompt(192), GREEDY)
        check_cold(engine, result, GREEDY)


def test_a_draw_that_fails_leaves_no_logits_of_the_position_before(
    engine: Engine, session: Session
) -> None:
    prompt = random_prompt(150)
    session.generate(prompt, replace(GREEDY, max_tokens=1))

    def fail_second(tokens: tuple[int, ...]) -> None:
        if tokens:
            raise LookupError("on purpose")

    with pytest.raises(LookupError):  # the whole prompt was there, and one token was read
        session.generate(prompt, replace(GREEDY, allowed_tokens=fail_second))
    assert len(session.tokens) == 151
    check_cold(engine, session.generate(session.tokens, GREEDY), GREEDY)


def stop_after(monkeypatch: pytest.MonkeyPatch, n_calls: int, do: object) -> None:
    """Have something done when the model has been called some times."""
    from mlx_dsv4.model import Model

    advance, calls = Model.advance, [0]

    def counted(self: Model, batch: object) -> object:
        calls[0] += 1
        states = advance(self, batch)
        if calls[0] == n_calls:
            do()
        return states

    monkeypatch.setattr(Model, "advance", counted)


def test_generations_of_one_session_follow_each_other(engine: Engine, session: Session) -> None:
    streams = [session.stream(random_prompt(30, seed), GREEDY) for seed in range(4)]
    results = [stream.result() for stream in reversed(streams)]
    for result in results:
        check_cold(engine, result, GREEDY)
    assert session.tokens == (*results[0].prompt, *results[0].tokens[:-1])


def test_two_threads_on_one_session_both_get_their_answer(engine: Engine, session: Session) -> None:
    outcomes: list[object] = []

    def generate(seed: int) -> None:
        for _ in range(4):
            outcomes.append(session.generate(random_prompt(20, seed), GREEDY))

    threads = [Thread(target=generate, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8
    for result in outcomes:
        check_cold(engine, result, GREEDY)


def test_a_failed_step_reaches_the_caller_and_the_next_prompt_recovers(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_prompt(150)
    session.generate(prompt, GREEDY)
    monkeypatch.setattr(type(engine.model), "_forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.generate([*prompt, 5], GREEDY)
    monkeypatch.undo()
    result = session.generate([*prompt, 5], GREEDY)
    assert result.reuse.kind == "reset"
    assert "poisoned" in result.reuse.reason
    check_cold(engine, result, GREEDY)


def test_nan_logits_are_an_error_of_that_generation_alone(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(engine.model), "logits", lambda self, state: mx.full((state.shape[0], 1024), mx.nan)
    )
    with pytest.raises(LogitsError, match="got 1024 NaN of 1024"):
        session.generate(random_prompt(20), GREEDY)
    monkeypatch.undo()
    check_cold(engine, session.generate(random_prompt(20), GREEDY), GREEDY)


def test_a_hook_that_raises_is_an_error_of_that_generation_alone(
    engine: Engine, session: Session
) -> None:
    def fail(_: tuple[int, ...]) -> None:
        raise LookupError("no rule for this")

    other = engine.stream(random_prompt(30, 1), replace(GREEDY, max_tokens=40))
    with pytest.raises(LookupError, match="no rule for this"):
        session.generate(random_prompt(20), Params(allowed_tokens=fail))
    check_cold(engine, other.result(), replace(GREEDY, max_tokens=40))
    check_cold(engine, session.generate(random_prompt(20), GREEDY), GREEDY)


def test_a_cache_that_does_not_fit_is_refused_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mlx_dsv4.engine.slot.LEAST_CAPACITY_TOKENS", 16)
    with load() as engine, engine.session() as session:
        prompt = random_prompt(150)
        session.generate(prompt, GREEDY)
        tokens = session.tokens
        monkeypatch.setattr("mlx_dsv4.cache.buffers.available_bytes", lambda: 10_000)
        with pytest.raises(AllocationError, match="10000 are available"):
            session.generate([*prompt, *random_prompt(400, 1)], GREEDY)
        assert session.tokens == tokens
        monkeypatch.undo()
        result = session.generate([*tokens, 5], GREEDY)
        assert result.reuse.kind == "live"
        check_cold(engine, result, GREEDY)


def test_rows_that_somebody_appended_behind_its_back_are_not_trusted(
    engine: Engine, session: Session
) -> None:
    prompt = random_prompt(150)
    session.generate(prompt, GREEDY)
    cache: Cache = session._open().cache
    engine.model.prefill([1, 2, 3], cache)
    result = session.generate([*session.tokens, 5], GREEDY)
    assert result.reuse.kind == "reset"
    check_cold(engine, result, GREEDY)


def test_save_and_load_go_on_without_prefill(engine: Engine, session: Session, tmp_path) -> None:
    path = tmp_path / "session.dsv4cache"
    first = session.generate(random_prompt(150), GREEDY)
    session.save(path)
    held = session.tokens
    session.reset()
    assert session.tokens == ()
    with load() as other, other.session() as fresh:
        fresh.generate([1, 2, 3], GREEDY)
        fresh.load(path)
        assert fresh.tokens == held
        result = fresh.generate([*first.prompt, *first.tokens, 5], GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("live", 157)
        check_cold(engine, result, GREEDY)


def test_an_empty_session_is_saved_too(session: Session, tmp_path) -> None:
    session.save(tmp_path / "empty")
    session.generate([1, 2, 3], GREEDY)
    session.load(tmp_path / "empty")
    assert session.tokens == ()


def test_loading_what_cannot_be_loaded_changes_nothing(session: Session, tmp_path) -> None:
    session.generate(random_prompt(150), GREEDY)
    session.save(tmp_path / "good")
    held = session.tokens
    damaged = bytearray((tmp_path / "good").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "bad").write_bytes(damaged)
    with pytest.raises(ValueError, match="bad"):
        session.load(tmp_path / "bad")
    with pytest.raises(FileNotFoundError):
        session.load(tmp_path / "none")
    with load(context=100) as small, small.session() as fresh:
        with pytest.raises(PlanError, match="must hold 157 tokens"):
            fresh.load(tmp_path / "good")
        assert fresh.tokens == ()
    assert session.tokens == held


def test_a_closed_session_says_so_and_gives_its_slot_back() -> None:
    with load(slots=1) as engine:
        with engine.session() as session:
            session.generate([1, 2, 3], GREEDY)
        session.close()
        for use in (lambda: session.generate([1], GREEDY), session.reset, lambda: session.tokens):
            with pytest.raises(ClosedError, match="a session must be open"):
                use()
        engine.session().generate([1, 2], GREEDY)  # and one that nobody refers to
        engine.session().close()


def test_a_poisoned_session_cannot_be_saved(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setattr(type(engine.model), "_forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.generate([1, 2, 3], GREEDY)
    monkeypatch.undo()
    with pytest.raises(CacheStateError, match="poisoned"):
        session.save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
