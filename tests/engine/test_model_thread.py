"""The thread of the model: what it cannot foresee reaches everybody who waits for it."""

import asyncio
import threading

import pytest

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine.scheduler import Scheduler
from mlx_dsv4.engine.stream import Mailbox
from mlx_dsv4.errors import ClosedError
from tiny_models import tiny_model


def test_an_unforeseen_error_ends_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    with Engine.load(tiny_model().path, context=100, slots=1) as engine:

        def broken(_: Scheduler) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(Scheduler, "_next_calls", broken)

        async def ask() -> list[object]:
            streams = [engine.stream([5, 6, 7], Params(max_tokens=2)) for _ in range(2)]
            ends = [asyncio.wait_for(stream.wait(), 10) for stream in streams]
            return await asyncio.gather(*ends, return_exceptions=True)

        ended = asyncio.run(ask())
        assert [type(end) for end in ended] == [ClosedError, ClosedError]
        with pytest.raises(ClosedError):
            engine.stream([5, 6, 7])
    assert told == [ZeroDivisionError]


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
