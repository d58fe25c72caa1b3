"""Answers are remembered by the model's thread while others look for them."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from mlx_dsv4 import Engine, Params
from tiny_models import tiny_model

ASKED = [{"role": "user", "content": "What is a span?"}]


class Interrupted(OrderedDict[str, Any]):
    """Lets another thread forget an entry right after one has found it, if nothing keeps it out."""

    def __init__(self, entries: OrderedDict[str, Any], forget: Callable[[], None]) -> None:
        super().__init__(entries)
        self.thread = Thread(target=forget)
        self.forgotten, self.looked = Event(), Event()

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        self.thread.start()
        self.forgotten.wait(0.2)
        return found

    def pop(self, *arguments: Any) -> Any:
        entry = super().pop(*arguments)
        self.forgotten.set()
        self.looked.wait(5)
        return entry


def test_an_answer_is_found_while_the_same_one_is_remembered_again() -> None:
    with Engine.load(tiny_model().path, warm_up=False) as engine:
        answer = engine.chat(ASKED, Params(max_tokens=5, temperature=0), thinking=False)
        encoding, turns = engine.chat_parts()
        known = Interrupted(turns._known, lambda: turns.remember(answer, thinking=False))
        turns._known = known
        prompt = encoding.render([*ASKED, answer.message, *ASKED], thinking=False)
        try:
            ids = turns.splice(prompt)
        finally:
            known.looked.set()
            known.thread.join()
    before = len(answer.prompt)
    assert tuple(ids[: before + 5]) == answer.prompt + answer.tokens
    assert len(known) == 1
