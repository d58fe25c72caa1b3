"""Runs the example server beside a test, and scripts what its model writes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from socket import create_server
from threading import Thread
from typing import Any

import numpy as np
import pytest
import uvicorn

from mlx_dsv4 import Engine
from mlx_dsv4.engine import Stream
from openai_server import create_app


@contextmanager
def running(server: uvicorn.Server) -> Iterator[str]:
    """Its address; it has ended when this has."""
    listener = create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def serving(engine: Engine, **options: Any) -> Iterator[str]:
    """The address of a server of an engine."""
    app = create_app(engine, model_name="tiny", **options)
    with running(uvicorn.Server(uvicorn.Config(app, ws="none", log_level="warning"))) as address:
        yield address


def script(engine: Engine, text: str) -> Callable[[Sequence[int]], np.ndarray]:
    """A hook that lets a model write this and end; control tokens are those of the vocabulary."""
    ids = [*engine.tokenizer.encode(text, special=True), engine.tokenizer.eos_id]

    def only_next(tokens: Sequence[int]) -> np.ndarray:
        return np.arange(engine.config.vocab) == ids[len(tokens)]

    return only_next


def force(monkeypatch: pytest.MonkeyPatch, engine: Engine, text: str) -> list[dict[str, Any]]:
    """Let the engine answer this to every conversation; what it was asked."""
    asked: list[dict[str, Any]] = []
    stream_chat = type(engine).stream_chat

    def scripted(messages: Any, params: Any, **options: Any) -> Stream:
        asked.append({"messages": messages, "params": params, **options})
        hook = script(engine, text)
        return stream_chat(engine, messages, replace(params, allowed_tokens=hook), **options)

    monkeypatch.setattr(engine, "stream_chat", scripted)
    return asked
