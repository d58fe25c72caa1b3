"""The thread of the model: what it cannot foresee reaches everybody who waits for it."""

import asyncio

import pytest

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine.scheduler import Scheduler
from mlx_dsv4.engine.stream import Mailbox
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
