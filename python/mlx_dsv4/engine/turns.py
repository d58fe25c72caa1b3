"""The tokens of answers as they were sampled, so that the next turn's prompt begins with them.

A message that is rendered again need not give the tokens that it was parsed from: another cut of
the same text, white space, the spelling of JSON. Then nothing after it could be reused.
"""

import json
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from xxhash import xxh3_128

from mlx_dsv4.engine.events import Result
from mlx_dsv4.engine.turns_file import Record, TurnsFile
from mlx_dsv4.text import ChatPrompt

MOST_BYTES = 32 * 2**20
ENTRY_BYTES = 1024  # of an answer, besides its tokens


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer's tokens.

    Attributes:
        reasoning: Digest of it as it was parsed.
        thinks: Whether the turn began in reasoning.
        tokens: From after ``<think>`` on if it did, from after ``</think>`` on if not.
        answer: Index of the first one after ``</think>``.
    """

    reasoning: str
    thinks: bool
    tokens: "array[int]"
    answer: int

    @property
    def n_bytes(self) -> int:
        return ENTRY_BYTES + self.tokens.itemsize * len(self.tokens)


class Turns:
    """Answers by the message that they became; the least recently used are forgotten first.

    Any thread may use it.

    Args:
        end_think: Id of ``</think>``; None where the vocabulary has none.
        call_marker: Id of ``｜DSML｜``, which is in each marker of a tool call; None as above.
        file: Where they are kept for other processes that use the same vocabulary; None: nowhere.
    """

    def __init__(
        self, end_think: int | None, call_marker: int | None, file: TurnsFile | None = None
    ) -> None:
        self._end_think = end_think
        self._call_marker = call_marker
        self._known: OrderedDict[str, Sampled] = OrderedDict()
        self._n_bytes = 0
        self._lock = Lock()
        self._file = file
        if file is not None:
            self.add(file.records())

    def remember(self, result: Result, prompt: ChatPrompt) -> None:
        """Keep the tokens of an answer that is a whole turn, whose message has all its text.

        What is left is rendered from its message: an answer that continues a message, that was
        cut in a tool call, or in the reasoning, which then lacks its end.
        """
        key = _key(result.message)
        sampled = self._sampled(result, prompt)
        if key is None or sampled is None:
            return
        self._put(key, sampled)
        if self._file is not None:
            self._file.append([_record(key, sampled)])

    def records(self, messages: Iterable[Mapping[str, Any]]) -> list[Record]:
        """What is known of the answers among some messages, as JSON values without any text."""
        keys = [_key(message) for message in messages if message.get("role") == "assistant"]
        with self._lock:
            return [_record(k, self._known[k]) for k in keys if k is not None and k in self._known]

    def add(self, records: Iterable[Record]) -> None:
        """Take over what :meth:`records` gave, of the same vocabulary."""
        for key, reasoning, thinks, answer, tokens in records:
            self._put(key, Sampled(reasoning, thinks, array("i", tokens), answer))

    def _put(self, key: str, sampled: Sampled) -> None:
        with self._lock:
            self._forget(key)
            self._known[key] = sampled
            self._n_bytes += sampled.n_bytes
            while self._n_bytes > MOST_BYTES:
                self._forget(next(iter(self._known)))

    def _sampled(self, result: Result, prompt: ChatPrompt) -> Sampled | None:
        if prompt.answer is None:
            return None
        cut = result.finish_reason == "length"
        if cut and self._call_marker in result.tokens:
            return None
        # What the prompt opens belongs to the turn: a tool call that is required.
        tokens = prompt.ids[prompt.answer :] + list(result.tokens if cut else result.tokens[:-1])
        if prompt.ids[prompt.answer - 1] == self._end_think:
            return Sampled(_digest(""), False, array("i", tokens), 0)
        if self._end_think not in tokens:
            return None
        after = tokens.index(self._end_think) + 1
        return Sampled(_digest(result.reasoning), True, array("i", tokens), after)

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
        with self._lock:
            sampled = self._known.get(key) if key is not None else None
            if key is None or sampled is None:
                return None
            self._known.move_to_end(key)
        if not thinks:
            return sampled.tokens[sampled.answer :]
        given = message.get("reasoning_content") or ""
        # The ids of calls are unique, so that they name the turn where clients leave out reasoning.
        same = _digest(given) == sampled.reasoning or (message.get("tool_calls") and not given)
        return sampled.tokens if same and sampled.thinks else None

    def _forget(self, key: str) -> None:
        sampled = self._known.pop(key, None)
        if sampled is not None:
            self._n_bytes -= sampled.n_bytes


def _record(key: str, sampled: Sampled) -> Record:
    return [key, sampled.reasoning, sampled.thinks, sampled.answer, list(sampled.tokens)]


def _digest(text: str) -> str:
    return xxh3_128(text.encode("utf-8", "surrogatepass")).hexdigest()


def _key(message: Mapping[str, Any]) -> str | None:
    """Digest of what makes two messages the same answer; None if it has no form that is parsed."""
    content = message.get("content") or ""
    calls = message.get("tool_calls") or []
    if not isinstance(content, str):
        return None
    # Without calls, the reasoning is part of what tells two turns apart.
    rest = None if calls else message.get("reasoning_content") or ""
    try:
        named = [
            [call["id"], call["function"]["name"], _value(call["function"]["arguments"])]
            for call in calls
        ]
        return _digest(json.dumps([content, named, rest], sort_keys=True))
    except RecursionError:  # of arguments that nest too deeply
        return None


def _value(arguments: str) -> object:
    """Arguments as data: clients write JSON in their own way."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
