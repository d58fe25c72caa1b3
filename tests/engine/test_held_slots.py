"""Slots that sessions hold, ask for and give back while other requests wait."""

import gc
import signal
import time
from collections.abc import Callable
from threading import Thread, Timer, get_ident
from typing import Any

import pytest

from cold import GREEDY, check_cold, load, random_prompt
from mlx_dsv4 import Engine, Session
from mlx_dsv4.errors import ClosedError, SlotError
from test_slots import hold_back


def aside(work: Callable[[], Any]) -> tuple[Thread, list[Any]]:
    """Begin something in another thread; what comes of it."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(work())
        except Exception as error:
            came.append(error)

    thread = Thread(target=run)
    thread.start()
    return thread, came


def until_called(engine: Engine, n_calls: int = 1) -> None:
    """Until as many wait for the engine's thread."""
    while len(engine._scheduler._calls) < n_calls:
        time.sleep(0.001)


def interrupt_soon() -> None:
    """A Ctrl-C while this thread waits."""
    Timer(0.2, signal.pthread_kill, (get_ident(), signal.SIGINT)).start()


def test_a_session_does_not_take_the_slot_of_a_request_that_waits() -> None:
    with load(slots=1) as engine:
        let_go = hold_back(engine).let_go
        request = engine.stream(random_prompt(20), GREEDY)
        thread, came = aside(engine.session)
        until_called(engine)
        let_go()
        thread.join()
        assert [type(it) for it in came] == [SlotError]
        done = []
        reader = Thread(target=lambda: done.append(request.result()))
        reader.start()
        reader.join(10)
        assert done, "the request waits for a slot that is held"
        check_cold(engine, done[0], GREEDY)


def test_what_waits_for_a_closed_session_does_not_run_in_the_next_one(tmp_path) -> None:
    with load(slots=2) as engine:
        closed = engine.session()
        closed.generate(random_prompt(30, 1), GREEDY)
        let_go = hold_back(engine).let_go
        last = closed.stream(random_prompt(20), GREEDY)
        saving, saved = aside(lambda: closed.save(tmp_path / "closed"))
        while engine._scheduler.counts()[1] < 2:
            time.sleep(0.001)
        closed.close()
        asked = [aside(engine.session) for _ in range(2)]
        until_called(engine, 2)
        let_go()
        for thread, _ in asked:
            thread.join()
        # One slot is free; the other one is not before the request has ended.
        assert {type(came[0]) for _, came in asked} == {Session, SlotError}
        result = last.result()
        check_cold(engine, result, GREEDY)
        saving.join()
        assert saved == [None]
        with engine.session() as session:
            assert session.tokens == ()
            session.load(tmp_path / "closed")
            assert session.tokens == (*result.prompt, *result.tokens[:-1])


def test_a_session_that_nobody_got_gives_its_slot_back() -> None:
    with load(slots=1) as engine:
        let_go = hold_back(engine).let_go
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            engine.session()
        let_go()
        gc.collect()
        assert [slot.held_by_session for slot in engine.status().slots] == [False]
        with engine.session() as session:
            assert isinstance(session, Session)


def test_an_interrupted_save_is_given_up(tmp_path) -> None:
    with load(slots=1) as engine, engine.session() as session:
        session.generate(random_prompt(20), GREEDY)
        let_go = hold_back(engine).let_go
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            session.save(tmp_path / "cache")
        let_go()
        again = session.generate(random_prompt(20), GREEDY)
        check_cold(engine, again, GREEDY)
        assert not list(tmp_path.iterdir())


def test_closing_passes_over_what_was_interrupted(tmp_path) -> None:
    with load(slots=1) as engine, engine.session() as session:
        let_go = hold_back(engine).let_go
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            session.save(tmp_path / "cache")
        waiting = session.stream(random_prompt(20), GREEDY)
        closing, closed = aside(engine.close)
        while not engine._scheduler.closed:
            time.sleep(0.001)
        let_go()
        closing.join(10)
        assert closed == [None]
        with pytest.raises(ClosedError):
            waiting.result()
