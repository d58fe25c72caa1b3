"""What a generation tells while it runs, and what it was when it has ended."""

from dataclasses import dataclass, field
from typing import Literal

from mlx_dsv4.engine.sampling import TokenLogprob

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
ReuseKind = Literal["live", "anchor", "branch", "disk", "reset"]


@dataclass(frozen=True, slots=True)
class Reuse:
    """How much of a prompt was not computed again, and why no more.

    Attributes:
        kind: "live": the session held a prefix of the prompt; "anchor": it went back to a position
            it had kept; "branch": it took over such a position of another slot; "disk": a saved
            cache was read; "reset": it began empty.
        tokens: Of the prompt, not computed.
        diverged_at: First position at which the prompt and what the session held differ; None
            where one of them begins the other, or the session held nothing.
        reason: The same in words.
    """

    kind: ReuseKind
    tokens: int
    diverged_at: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts and times of one generation. Seconds are those of the clock, other sessions' included.

    Attributes:
        prompt_tokens: Read or reused.
        cached_tokens: Of these, reused.
        generated_tokens: A stop token included.
        queue_seconds: Until it got a slot.
        prefill_seconds: From there to the first token.
        decode_seconds: From there to the last one.
        first_text_seconds: From the request to the first visible text; None if there was none.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    first_text_seconds: float | None

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens computed per second."""
        return _rate(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first one, which comes from the prefill."""
        return _rate(max(self.generated_tokens - 1, 0), self.decode_seconds)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for.

    Attributes:
        id: Unique, for the message with its result.
        name: Of the tool.
        arguments: JSON text as the model wrote it; not checked against the tool's schema, and cut
            short where the generation was.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Result:
    """One finished generation.

    Attributes:
        text: The answer; without reasoning and tool calls.
        reasoning: What was thought before it; empty where nothing was.
        tool_calls: In order.
        finish_reason: "stop": a stop token or string; "length": ``max_tokens`` or the context;
            "tool_calls": the answer ends in calls; "cancelled".
        prompt: Token ids that were read.
        tokens: Token ids that were generated, a stop token included.
        usage: Counts and times.
        reuse: What of the prompt was not computed; None if it was cancelled before.
        logprobs: Of each token, if they were asked for.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    prompt: tuple[int, ...] = field(repr=False)
    tokens: tuple[int, ...] = field(repr=False)
    usage: Usage
    reuse: Reuse | None
    logprobs: tuple[TokenLogprob, ...] = field(repr=False, default=())

    @property
    def message(self) -> dict[str, object]:
        """The answer as a message, to append to the messages of the next turn."""
        message: dict[str, object] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the prompt has been read.

    Attributes:
        processed: Prompt tokens that are read or reused.
        total: Prompt tokens.
        rate: Tokens per second computed so far; 0.0 before the first.
        reuse: What was not computed, and why.
    """

    processed: int
    total: int
    rate: float
    reuse: Reuse


@dataclass(frozen=True, slots=True)
class Text:
    """The next piece of the answer: whole characters, nothing that a stop string may begin.

    Attributes:
        text: The piece.
        logprobs: Of the tokens drawn since the event before, if they were asked for.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The next piece of what is thought before the answer; as :class:`Text`."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call.

    Attributes:
        index: Which call.
        id: Of the call, in its first piece; empty in the others.
        name: Of the tool, in the first piece; empty in the others.
        arguments: More of its JSON text.
    """

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Done:
    """The last event."""

    result: Result


Event = Progress | Text | Reasoning | ToolCallDelta | Done


def _rate(n_tokens: int, seconds: float) -> float:
    return n_tokens / seconds if seconds > 0 else 0.0
