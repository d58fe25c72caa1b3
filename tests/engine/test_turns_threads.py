"""Remembered answers are looked up by callers while the thread of the model adds and forgets."""

from collections import OrderedDict
from threading import Thread
from typing import Any

import pytest

from mlx_dsv4.engine import Result, Usage, turns
from mlx_dsv4.engine.turns import Turns
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.text import ChatEncoding, ChatPrompt, Tokenizer
from tiny_models import tiny_model


def answer(text: str) -> Result:
    usage = Usage(1, 0, 2, 0.0, 0.0, 0.0, None)
    return Result(text, "", (), "stop", (5,), (6, 7), usage, None)


def prompt_with(text: str) -> ChatPrompt:
    """A conversation with an answer in it."""
    with GGUFFile(tiny_model().path) as file:
        encoding = ChatEncoding(Tokenizer.from_metadata(file.metadata))
    said = [("user", "hi"), ("assistant", text), ("user", "again")]
    messages = [{"role": role, "content": content} for role, content in said]
    return encoding.render(messages, thinking=False)


def test_an_answer_is_not_forgotten_while_it_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_TOKENS", 2)  # of one answer
    known, prompt = Turns(None, 1), prompt_with("A")
    other = Thread(target=lambda: known.remember(answer("B"), thinking=False))

    class Slow(OrderedDict[str, Any]):
        def get(self, key: str, default: object = None) -> object:
            found = super().get(key, default)
            other.start()
            other.join(0.2)
            return found

    known.remember(answer("A"), thinking=False)
    known._known = Slow(known._known)
    turn = prompt.turns[0]
    assert known.splice(prompt) == [*prompt.ids[: turn.start], 6, 7, *prompt.ids[turn.end :]]
    other.join()
    assert len(known._known) == 1  # the other one has come, and A has gone
