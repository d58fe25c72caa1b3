"""Reading events: with for and async for, from several places, to the end or not."""

import asyncio
import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread

import pytest

from cold import GREEDY, check_cold, cold_tokens, load, random_prompt
from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Done, Text
from mlx_dsv4.errors import LogitsError

ENDLESS = Params(max_tokens=500, temperature=0)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with load(slots=3) as engine:
        yield engine


@pytest.fixture
def endless(engine: Engine) -> Params:
    never = dict.fromkeys(engine.tokenizer.stop_ids, -1e3)
    return replace(ENDLESS, logit_bias=never)


def wait_until_idle(engine: Engine) -> None:
    end = time.monotonic() + 30
    while engine.status().running:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_async_for_gives_the_same_events(engine: Engine) -> None:
    async def read() -> list[object]:
        return [event async for event in engine.stream(random_prompt(30), GREEDY)]

    *_, done = asyncio.run(read())
    assert isinstance(done, Done)
    check_cold(engine, done.result, GREEDY)


def test_the_text_alone_is_read_in_both_ways(engine: Engine) -> None:
    expected = engine.tokenizer.decode(
        cold_tokens(engine, random_prompt(30), GREEDY), control=False
    )

    async def read() -> str:
        stream = engine.stream(random_prompt(30), GREEDY)
        return "".join([piece async for piece in stream.text()])

    assert "".join(engine.stream(random_prompt(30), GREEDY).text()) == expected
    assert asyncio.run(read()) == expected


def test_leaving_the_text_cancels(engine: Engine, endless: Params) -> None:
    for_stream = engine.stream(random_prompt(30), endless)
    for _ in for_stream.text():
        break
    async_stream = engine.stream(random_prompt(30), endless)

    async def leave() -> None:
        async for _ in async_stream.text():
            break

    asyncio.run(leave())
    reasons = [stream.result().finish_reason for stream in (for_stream, async_stream)]
    assert reasons == ["cancelled", "cancelled"]


def test_many_streams_in_one_event_loop(engine: Engine) -> None:
    async def read() -> list[object]:
        streams = [engine.stream(random_prompt(20, i), GREEDY) for i in range(12)]
        return await asyncio.gather(*(stream.wait() for stream in streams))

    for result in asyncio.run(read()):
        check_cold(engine, result, GREEDY)


def test_the_event_loop_is_not_blocked(engine: Engine, endless: Params) -> None:
    async def read() -> tuple[int, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        result = await engine.stream(random_prompt(20), replace(endless, max_tokens=60)).wait()
        ticking.cancel()
        return ticks, len(result.tokens)

    ticks, n_tokens = asyncio.run(read())
    assert ticks > n_tokens == 60


def test_cancelling_a_task_cancels_its_generation(engine: Engine, endless: Params) -> None:
    async def read() -> None:
        async for event in engine.stream(random_prompt(20), endless):
            if isinstance(event, Text):
                await asyncio.sleep(100)

    async def main() -> None:
        task = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until_idle(engine)
    assert all(slot.tokens < 400 for slot in engine.status().slots)


def test_a_reader_in_another_thread_and_loop(engine: Engine) -> None:
    stream = engine.stream(random_prompt(20), GREEDY)
    got: list[object] = []
    thread = Thread(target=lambda: got.append(asyncio.run(stream.wait())))
    thread.start()
    thread.join()
    check_cold(engine, got[0], GREEDY)
    assert stream.result() is got[0]


@pytest.mark.parametrize("how", ["break", "with", "drop", "close", "never read"])
def test_a_stream_that_nobody_reads_on_ends(engine: Engine, endless: Params, how: str) -> None:
    stream = engine.stream(random_prompt(20), endless)
    if how == "break":
        for event in stream:
            if isinstance(event, Text):
                break
    elif how == "with":
        with stream:
            next(iter(stream))
    elif how == "drop":
        next(iter(stream.text()))
    elif how == "close":
        next(iter(stream))
        stream.cancel()
    stream = None if how in ("drop", "never read") else stream
    gc.collect()
    wait_until_idle(engine)
    assert all(slot.tokens < 400 for slot in engine.status().slots)
    engine.generate([1, 2], GREEDY)


def test_reading_goes_on_where_it_was_left_off(engine: Engine) -> None:
    stream = engine.stream(random_prompt(20), GREEDY)
    events = iter(stream)
    pieces = [
        event.text
        for event in (next(events), next(events), next(events))
        if isinstance(event, Text)
    ]
    pieces += [event.text for event in events if isinstance(event, Text)]
    assert "".join(pieces) == stream.result().text


def test_the_result_can_be_asked_for_again(engine: Engine) -> None:
    stream = engine.stream(random_prompt(20), GREEDY)
    assert stream.result() is stream.result()
    assert list(stream) == []
    assert stream.ended


def test_the_error_can_be_asked_for_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_dsv4.engine.sampling.Sampler.draw", nan)
    stream = engine.stream(random_prompt(20), GREEDY)
    for _ in range(2):
        with pytest.raises(LogitsError, match="on purpose"):
            stream.result()


def nan(*_: object) -> int:
    raise LogitsError("on purpose")


def test_text_is_the_pieces_of_the_answer_alone(engine: Engine) -> None:
    pieces = list(engine.stream(random_prompt(20), GREEDY).text())
    assert len(pieces) > 1
    expected = cold_tokens(engine, random_prompt(20), GREEDY)
    assert "".join(pieces) == engine.tokenizer.decode(expected, control=False)


def test_cancelled_results_are_prefixes(engine: Engine, endless: Params) -> None:
    stream = engine.stream(random_prompt(20), endless)
    for event in stream:
        if isinstance(event, Text):
            stream.cancel()
    tokens = list(stream.result().tokens)
    assert 1 <= len(tokens) < 500
    expected = cold_tokens(engine, random_prompt(20), replace(endless, max_tokens=len(tokens)))
    assert tokens == expected
