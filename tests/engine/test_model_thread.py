"""The thread of the model: what it cannot foresee reaches everybody who waits for it."""

import asyncio
import os
import sys
from asyncio import CancelledError
from threading import Event, Thread

import pytest

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine.scheduler import Scheduler
from mlx_dsv4.engine.stream import Mailbox
from mlx_dsv4.errors import ParamsError, ThreadError
from tiny_models import tiny_model


def test_an_unforeseen_error_reaches_all_who_wait_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine.load(tiny_model().path, context=100, slots=1) as engine:
        good = engine.generate([5, 6, 7], Params(max_tokens=2, temperature=0))
        monkeypatch.setattr(Scheduler, "_next_calls", lambda _: 1 / 0)

        async def ask() -> list[object]:
            streams = [engine.stream([5, 6, 7], Params(max_tokens=2)) for _ in range(2)]
            ends = [asyncio.wait_for(stream.wait(), 10) for stream in streams]
            return await asyncio.gather(*ends, return_exceptions=True)

        assert [type(end) for end in asyncio.run(ask())] == [ZeroDivisionError] * 2
        monkeypatch.undo()
        again = engine.generate([5, 6, 7], Params(max_tokens=2, temperature=0))
        assert again.tokens == good.tokens
    assert "the engine failed" in caplog.text


def test_who_comes_while_others_are_told_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    params = Params(max_tokens=2, temperature=0)
    with Engine.load(tiny_model().path, context=100, slots=1) as engine:
        good = engine.generate([5, 6, 7], params)
        put, came = Mailbox.put, []

        def come_and_put(mailbox: Mailbox, item: object) -> None:
            if isinstance(item, ZeroDivisionError) and not came:
                monkeypatch.setattr(Scheduler, "_next_calls", next_calls)
                thread = Thread(target=lambda: came.append(engine.stream([5, 6, 7], params)))
                thread.start()
                thread.join(10)
            put(mailbox, item)

        next_calls = Scheduler._next_calls
        monkeypatch.setattr(Mailbox, "put", come_and_put)
        monkeypatch.setattr(Scheduler, "_next_calls", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate([5, 6, 7], params)
        assert came[0].result().tokens == good.tokens


def test_a_reader_whose_loop_has_been_closed_is_left_alone() -> None:
    mailbox = Mailbox()

    async def wait_once() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mailbox.take_async(), 0.01)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait_once())
    loop.close()
    mailbox.put(ValueError())
    assert isinstance(mailbox.take(), ValueError)


@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError])
def test_a_hook_cannot_end_the_thread_of_all(ends: type[BaseException]) -> None:
    def hook(_: object) -> None:
        raise ends

    with Engine.load(tiny_model().path, context=100, slots=1) as engine:

        async def ask(params: Params) -> object:
            return await asyncio.wait_for(engine.stream([5, 6, 7], params).wait(), 10)

        with pytest.raises(ParamsError, match=f"bool; it raised {ends.__name__}"):
            asyncio.run(ask(Params(max_tokens=2, allowed_tokens=hook)))
        assert asyncio.run(ask(Params(max_tokens=2)))


@pytest.mark.parametrize("what", ["status", "session", "generate", "save"])
def test_a_hook_that_asks_its_own_engine_is_told(what: str, tmp_path) -> None:
    with Engine.load(tiny_model().path, context=100, slots=2) as engine:
        session = engine.session()
        asks = {
            "status": engine.status,
            "session": engine.session,
            "generate": lambda: engine.generate([5, 6, 7], Params(max_tokens=1)),
            "save": lambda: session.save(tmp_path / "cache"),
        }

        async def ask() -> object:
            params = Params(max_tokens=2, allowed_tokens=lambda _: asks[what]())
            return await asyncio.wait_for(engine.stream([5, 6, 7], params).wait(), 10)

        with pytest.raises(ThreadError, match="would wait for itself"):
            asyncio.run(ask())


@pytest.mark.skipif(sys.platform == "darwin", reason="forking is not safe there")
def test_a_forked_process_is_told_and_ends() -> None:
    with Engine.load(tiny_model().path, context=100, slots=1) as engine:
        params = Params(max_tokens=2, temperature=0)
        engine.generate([5, 6, 7], params)
        entered, go = Event(), Event()

        def holds_the_lock() -> None:
            with engine._scheduler._changed:
                entered.set()
                go.wait(30)

        Thread(target=holds_the_lock).start()
        entered.wait(30)
        child = os.fork()
        if child == 0:
            told = 0
            try:
                engine.generate([5, 6, 7], params)
            except ThreadError:
                told = 7
            engine.close()
            os._exit(told)
        go.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert engine.generate([5, 6, 7], params).tokens
