"""Remembered answers are looked up by callers while the thread of the model adds and forgets."""

import sys
from collections.abc import Iterator
from threading import Thread

import pytest

from mlx_dsv4.engine import Result, Usage, turns
from mlx_dsv4.engine.turns import Turns
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.text import ChatEncoding, ChatPrompt, Tokenizer
from tiny_models import tiny_model

ROUNDS = 3000


@pytest.fixture
def hasty_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


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


@pytest.mark.usefixtures("hasty_switches")
def test_an_answer_may_be_forgotten_while_it_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_TOKENS", 2)
    known, prompt = Turns(None, 1), prompt_with("A")
    sampled = [*prompt.ids[: prompt.turns[0].start], 6, 7, *prompt.ids[prompt.turns[0].end :]]
    wrong: list[object] = []

    def look_up() -> None:
        for _ in range(ROUNDS):
            try:
                ids = known.splice(prompt)
            except KeyError as error:
                wrong.append(error)
                return
            if ids not in (prompt.ids, sampled):
                wrong.append(ids)

    readers = [Thread(target=look_up) for _ in range(2)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        known.remember(answer("A"), thinking=False)
        known.remember(answer("B"), thinking=False)
    assert wrong == []
