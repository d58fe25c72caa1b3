"""What the example server tells of a generation to a client that is slow to take it."""

import asyncio
from types import SimpleNamespace
from typing import Any

from mlx_dsv4.engine import Done, Result, Stream, Text, Usage
from mlx_dsv4.engine.stream import Mailbox
from openai_server import Silence, watch

RESULT = Result("ab", "", (), "length", (5,), (6, 7), Usage(1, 0, 2, 0.0, 0.0, 0.0, None), None)


async def never() -> dict[str, Any]:
    """What a client that stays sends."""
    await asyncio.Event().wait()
    return {}


def test_an_event_that_comes_while_a_comment_is_sent_is_told() -> None:
    mailbox = Mailbox()
    coming = [Text("a"), Text("b"), Done(RESULT)]
    told: list[object] = []

    async def read() -> None:
        client: Any = SimpleNamespace(receive=never)
        async for event in watch(Stream(mailbox), client, 0.01):
            if not isinstance(event, Silence):
                told.append(event)
            elif coming:
                # The next one comes while the client takes its time.
                mailbox.put(coming.pop(0))
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(read(), 10))
    assert told == [Text("a"), Text("b"), Done(RESULT)]
