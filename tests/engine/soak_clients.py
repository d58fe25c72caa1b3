"""Clients of a soak: threads and an event loop that send requests, read, cancel and give up."""

import asyncio
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from mlx_dsv4 import Engine
from mlx_dsv4.engine import Done, Progress, Reasoning, Result, Session, Stream, Text
from mlx_dsv4.errors import SlotError
from soak_journal import Journal, Record
from soak_requests import Ask, Maker

LEAVING = ("at once", "at progress", "at text", "after a while", "by dropping it")
STAYS = 0.75  # of requests are read to the end


class Client:
    """Sends one request after the other, of all kinds.

    Args:
        engine: To ask.
        journal: To tell.
        seed: Of everything that it does.
        folder: For saved sessions.
    """

    def __init__(self, engine: Engine, journal: Journal, seed: str, folder: Path) -> None:
        self.engine = engine
        self.journal = journal
        self.random = Random(seed)
        self.maker = Maker(engine, self.random)
        self._file = folder / f"{seed.replace('/', '-')}.session"

    def run(self, until: float) -> None:
        """Go on until a time of the clock."""
        kinds: list[Callable[[], object]] = [
            *4 * [lambda: self.ask(self.engine, self.maker.plain())],
            *2 * [lambda: self.converse(self.engine)],
            *2 * [self.use_session],
            lambda: self.ask(self.engine, self.maker.at_the_context()),
            lambda: self.ask(self.engine, self.maker.hook_that_raises()),
            *2 * [lambda: self.ask(self.engine, self.maker.malformed())],
        ]
        while time.monotonic() < until:
            try:
                self.random.choice(kinds)()
            except Exception:
                self.journal.fail(f"a client got\n{traceback.format_exc()}")

    def ask(self, to: Engine | Session, ask: Ask, leaving: str | None = None) -> Result | None:
        """Send a request and read it, or leave early; the result, if there is one."""
        leaving = leaving or self.leaving(ask)
        started = self.journal.now()
        try:
            stream = ask.call(to)
            text = self._read(stream, leaving)
            if leaving == LEAVING[-1] and ask.prompt is not None:
                self.journal.abandon(list(ask.prompt))
                self.journal.outcome(ask.kind, "dropped")
                return None
            result = stream.result()
        except (SlotError, *ask.errors) as error:
            self.refused(ask, error)
            return None
        self.finished(ask, result, text, started)
        return result

    def leaving(self, ask: Ask) -> str | None:
        """How a reader gives up; None: it does not."""
        stays = ask.must_fail or self.random.random() < STAYS
        return None if stays else self.random.choice(LEAVING)

    def refused(self, ask: Ask, error: Exception) -> None:
        self.journal.outcome(ask.kind, type(error).__name__)
        if ask.prompt is not None:
            self.journal.abandon(list(ask.prompt))

    def finished(self, ask: Ask, result: Result, text: str | None, started: int) -> None:
        if ask.must_fail:
            self.journal.fail(f"{ask.kind} gave {result}")
        ended = self.journal.now()
        self.journal.add(Record(ask.kind, ask.params, result, text, ask.chat, started, ended))

    def _read(self, stream: Stream, leaving: str | None) -> str | None:
        """The text, if nobody left before its end."""
        if leaving == "at once":
            stream.cancel()
        elif leaving == "after a while":
            time.sleep(self.random.random() * 0.1)
            stream.cancel()
        pieces: list[str] = []
        for event in stream:
            if isinstance(event, Text):
                pieces.append(event.text)
            if leaves(leaving, event):
                return None
        return "".join(pieces)

    def converse(self, to: Engine | Session) -> None:
        """Some turns of one conversation; calls of tools are answered."""
        tools, thinking = self.random.random() < 0.4, self.random.random() < 0.5
        messages: list[dict[str, Any]] = [self.maker.system()]
        for _ in range(self.random.randint(1, 4)):
            if messages[-1]["role"] != "tool":
                messages.append(self.maker.user())
            result = self.ask(to, self.maker.question(messages, tools=tools, thinking=thinking))
            if result is None or result.finish_reason == "cancelled":
                return
            messages.append(result.message)
            for call in result.tool_calls:
                self.journal.count("outcomes", "calls of tools")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})

    def use_session(self) -> None:
        """Open a session, do some things with it, close it."""
        try:
            session = self.engine.session()
        except SlotError:
            self.journal.outcome("session", "SlotError")
            return
        with session:
            for _ in range(self.random.randint(1, 5)):
                self.random.choice(
                    (
                        *2 * (self._grow,),
                        self._cut_and_repeat,
                        self._save_and_load,
                        self._reset,
                        self.converse,
                    )
                )(session)
        self.journal.outcome("session", "closed")

    def _grow(self, session: Session) -> None:
        """Go on from what the session holds, or from a place shortly before its end."""
        held = session.tokens
        more = self.maker.plain()
        assert more.prompt is not None
        kept = held[: len(held) - self.random.choice((0, 0, 1, 6, 40))]
        prompt = (*kept, *more.prompt)[: self.engine.info.context]
        self._ask_and_look(session, self.maker.of("grown prompt", prompt, more.params))

    def _cut_and_repeat(self, session: Session) -> None:
        """Leave while a long prompt is read, then ask for what has been read of it."""
        self._ask_and_look(session, self.maker.at_the_context(), "at progress")
        if held := session.tokens:
            params = self.maker.params()
            self._ask_and_look(session, self.maker.of("prompt as held", held, params))

    def _ask_and_look(self, session: Session, ask: Ask, leaving: str | None = None) -> None:
        before = session.tokens
        result = self.ask(session, ask, leaving)
        if result is not None and result.reuse is None:
            self._expect(session, before)  # it was cancelled before it began
        elif result is not None:
            self._expect(session, held_after(result), result.finish_reason == "cancelled")

    def _save_and_load(self, session: Session) -> None:
        held = session.tokens
        session.save(self._file)
        if self.random.random() < 0.5:
            session.reset()
        else:
            self.ask(session, self.maker.plain())
        session.load(self._file)
        self.journal.outcome("session.save and load", "loaded")
        self._expect(session, held)

    def _reset(self, session: Session) -> None:
        session.reset()
        self.journal.outcome("session.reset", "empty")
        self._expect(session, ())

    def _expect(self, session: Session, tokens: tuple[int, ...], cut: bool = False) -> None:
        """The session holds these tokens; or, where a prefill was cut short, a prefix of them."""
        held = session.tokens
        self.journal.count("checks", "tokens of sessions")
        if held != (tokens[: len(held)] if cut else tokens):
            self.journal.fail(f"a session holds {held}, not {tokens}")


def held_after(result: Result) -> tuple[int, ...]:
    """What a cache holds after a generation: the last token was drawn and not read."""
    return result.prompt + result.tokens[:-1]


def leaves(leaving: str | None, event: object) -> bool:
    """Whether a reader gives up at this event."""
    return (
        leaving == "by dropping it"
        or (leaving == "at progress" and isinstance(event, Progress))
        or (leaving == "at text" and isinstance(event, Text | Reasoning))
    ) and not isinstance(event, Done)


class AsyncClient(Client):
    """Reads several streams at once on an event loop."""

    def run(self, until: float) -> None:
        asyncio.run(self._run(until))

    async def _run(self, until: float) -> None:
        while time.monotonic() < until:
            pick = self.random.choice
            asks = [
                pick((self.maker.plain, self.maker.plain, self.maker.malformed))()
                for _ in range(self.random.randint(1, 4))
            ]
            for outcome in await asyncio.gather(*map(self._ask, asks), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    self.journal.fail(f"an async client got {outcome!r}")

    async def _ask(self, ask: Ask) -> None:
        leaving, started = self.leaving(ask), self.journal.now()
        try:
            stream = ask.call(self.engine)
            text = await self._read_async(stream, leaving)
            result = await stream.wait()
        except (SlotError, *ask.errors) as error:
            self.refused(ask, error)
            return
        self.finished(ask, result, text, started)

    async def _read_async(self, stream: Stream, leaving: str | None) -> str | None:
        if leaving == "after a while":
            # The task that reads is cancelled, as a server does when its client goes away.
            reader = asyncio.ensure_future(self._read_async(stream, None))
            await asyncio.wait([reader], timeout=self.random.random() * 0.1)
            if reader.done():
                return reader.result()
            reader.cancel()
            await asyncio.wait([reader])
            stream.cancel()
            return None
        if leaving == "at once":
            stream.cancel()
        pieces: list[str] = []
        async for event in stream:
            if isinstance(event, Text):
                pieces.append(event.text)
            if leaves(leaving, event):
                stream.cancel()
                return None
        return "".join(pieces)
