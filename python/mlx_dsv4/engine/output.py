"""Generated tokens to events: characters, stop strings, reasoning and tool calls."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, Protocol

from mlx_dsv4.engine.events import (
    FinishReason,
    Reasoning,
    Text,
    ToolCall,
    ToolCallDelta,
)
from mlx_dsv4.text import Detokenizer, OutputParser, StopStrings
from mlx_dsv4.text.chat import Piece

Piecewise = Iterator[Text | Reasoning | ToolCallDelta]
Ending = Literal["stop", "length", "cancelled"]


class Output(Protocol):
    """What the tokens of one generation become.

    Attributes:
        stopped: Whether a stop string has ended it.
        text, reasoning, tool_calls: All of it so far.
    """

    text: str
    reasoning: str
    tool_calls: list[ToolCall]

    @property
    def stopped(self) -> bool: ...

    def push(self, token: int) -> Piecewise:
        """The events that one more token completes."""
        ...

    def finish(self, ending: Ending) -> Piecewise:
        """The events of what was held back."""
        ...

    def finish_reason(self, ending: Ending) -> FinishReason:
        """What ended it, to the caller."""
        ...


class PlainOutput:
    """Text as it is, up to a stop string."""

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self.text = ""
        self.reasoning = ""
        self.tool_calls: list[ToolCall] = []

    @property
    def stopped(self) -> bool:
        return self._stops.found is not None

    def push(self, token: int) -> Piecewise:
        yield from self._text(self._stops.push(self._detokenizer.push(token)))

    def finish(self, ending: Ending) -> Piecewise:
        if not self.stopped:
            yield from self._text(self._stops.push(self._detokenizer.flush()))
            yield from self._text(self._stops.flush())

    def finish_reason(self, ending: Ending) -> FinishReason:
        return ending

    def _text(self, piece: str) -> Piecewise:
        if piece:
            self.text += piece
            yield Text(piece)


class ChatOutput:
    """The parts of an assistant's answer.

    Attributes:
        stopped: Whether a stop string has ended it.
    """

    def __init__(self, detokenizer: Detokenizer, parser: OutputParser) -> None:
        self._detokenizer = detokenizer
        self._parser = parser
        self.stopped = False
        self.text = ""
        self.reasoning = ""
        self.tool_calls: list[ToolCall] = []

    def push(self, token: int) -> Piecewise:
        yield from self._events(self._parser.push(self._detokenizer.push(token)))
        self.stopped = self._parser.finish_reason is not None

    def finish(self, ending: Ending) -> Piecewise:
        if not self.stopped:
            yield from self._events(self._parser.push(self._detokenizer.flush()))
            yield from self._events(self._parser.finish(length=ending != "stop"))

    def finish_reason(self, ending: Ending) -> FinishReason:
        return "tool_calls" if self._parser.finish_reason == "tool_calls" else ending

    def _events(self, pieces: Iterator[Piece]) -> Piecewise:
        for piece in pieces:
            if piece.reasoning:
                self.reasoning += piece.reasoning
                yield Reasoning(piece.reasoning)
            if piece.text:
                self.text += piece.text
                yield Text(piece.text)
            for index, call_id, name, arguments in piece.calls:
                if index == len(self.tool_calls):
                    self.tool_calls.append(ToolCall(call_id, name, ""))
                call = self.tool_calls[index]
                self.tool_calls[index] = replace(call, arguments=call.arguments + arguments)
                yield ToolCallDelta(index, call_id, name, arguments)
