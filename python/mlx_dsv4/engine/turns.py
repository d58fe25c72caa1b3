"""The tokens of answers as they were sampled, so that the next turn's prompt begins with them.

A message that is rendered again need not give the tokens that it was parsed from: another cut of
the same text, white space, the spelling of JSON. Then nothing after it could be reused.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_dsv4.engine.events import Result
from mlx_dsv4.text import ChatPrompt

MOST_TOKENS = 4_000_000  # 16 MB


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer's tokens.

    Attributes:
        reasoning: As it was parsed.
        with_reasoning: Tokens from after ``<think>`` on; None if it did not think.
        without: Tokens from after ``</think>`` on.
    """

    reasoning: str
    with_reasoning: tuple[int, ...] | None
    without: tuple[int, ...]


class Turns:
    """Answers by the message that they became; the least recently used are forgotten first.

    Args:
        end_think: Id of ``</think>``; None where the vocabulary has none.
        end: Id of the token that ends a turn.
    """

    def __init__(self, end_think: int | None, end: int) -> None:
        self._end_think = end_think
        self._end = end
        self._known: OrderedDict[str, Sampled] = OrderedDict()
        self._n_tokens = 0

    def remember(self, result: Result, *, thinking: bool) -> None:
        """Keep the tokens of an answer that its message has all the text of."""
        self.put(result.message, result.tokens, thinking=thinking)

    def put(self, message: Mapping[str, Any], sampled: Sequence[int], *, thinking: bool) -> None:
        """Keep the tokens that an answer was parsed from, another process's among them."""
        tokens = list(sampled)
        if tokens[-1:] == [self._end]:
            tokens.pop()
        whole = tuple(tokens) if thinking else None
        after = tokens.index(self._end_think) + 1 if self._end_think in tokens else len(tokens)
        without = tuple(tokens[after:]) if thinking else tuple(tokens)
        key = _key(message)
        if key is None:
            return
        self._forget(key)
        self._known[key] = Sampled(message.get("reasoning_content") or "", whole, without)
        self._n_tokens += len(tokens)
        while self._n_tokens > MOST_TOKENS:
            self._forget(next(iter(self._known)))

    def splice(self, prompt: ChatPrompt) -> list[int]:
        """The ids of a prompt, with remembered turns as they were sampled."""
        ids, at = list[int](), 0
        for turn in prompt.turns:
            tokens = self._find(turn.message, thinks=turn.thinks)
            if tokens is not None:
                ids += prompt.ids[at : turn.start]
                ids += tokens
                at = turn.end
        return ids + prompt.ids[at:]

    def _find(self, message: Mapping[str, Any], *, thinks: bool) -> Sequence[int] | None:
        key = _key(message)
        sampled = self._known.get(key) if key is not None else None
        if key is None or sampled is None:
            return None
        self._known.move_to_end(key)
        if not thinks:
            return sampled.without
        given = message.get("reasoning_content") or ""
        # The ids of calls are unique, so that they name the turn where clients leave out reasoning.
        if given == sampled.reasoning or (message.get("tool_calls") and not given):
            return sampled.with_reasoning
        return None

    def _forget(self, key: str) -> None:
        sampled = self._known.pop(key, None)
        if sampled is not None:
            self._n_tokens -= len(sampled.with_reasoning or sampled.without)


def _key(message: Mapping[str, Any]) -> str | None:
    """What makes two messages the same answer; None if it is of no form that was parsed."""
    content = message.get("content") or ""
    calls = message.get("tool_calls") or []
    if not isinstance(content, str):
        return None
    named = [
        [call["id"], call["function"]["name"], _value(call["function"]["arguments"])]
        for call in calls
    ]
    # Without calls, the reasoning is part of what tells two turns apart.
    rest = None if calls else message.get("reasoning_content") or ""
    return json.dumps([content, named, rest], sort_keys=True)


def _value(arguments: str) -> object:
    """Arguments as data: clients write JSON in their own way."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
