"""Messages to token ids, and generated text back to a message: DeepSeek's own chat encoding.

The rendering and the parsing are the ``deepseek-recipe`` package's; this module alone knows it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import deepseek_recipe as recipe

from mlx_dsv4.errors import ChatError
from mlx_dsv4.text.tokenizer import Tokenizer

Effort = Literal["low", "high", "max"]
ToolChoice = Literal["auto", "none", "required"]
Message = Mapping[str, Any]

USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"
CALL_MARKER = recipe.SpecialToken.Dsml.default_str()
_CALL_BEGINS = f"<{CALL_MARKER}"
_MODEL = "model"
_OUT_OF_ORDER = "with 'tool_calls'"  # in what the package says of calls without their results
_EOS = recipe.SpecialToken.Eos.default_str()
_OPTIONS = recipe.ConversionOptions().with_model_versions_by_name(
    {_MODEL: recipe.ModelVersion.DeepseekV4Pro}
)
# The preview release knows one paragraph about effort, which is that of "high" in 0731.
_EFFORTS: dict[str | None, dict[Effort | None, str]] = {
    "preview": {None: "low", "low": "low", "high": "low", "max": "high"},
    "0731": {None: "low", "low": "low", "high": "high", "max": "max"},
}


@dataclass(frozen=True, slots=True)
class Turn:
    """An assistant's turn in a rendered conversation.

    Attributes:
        message: What it was rendered from.
        start: Index in the ids of the first token after ``<think>`` or ``</think>``.
        end: Index of the token that ends the turn.
        thinks: Whether its reasoning is rendered.
    """

    message: Message
    start: int
    end: int
    thinks: bool


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation.

    Attributes:
        ids: Tokens.
        turns: The assistant's turns, in order.
        answer: Index in the ids of the first token of the turn that is to be written, as
            :attr:`Turn.start`; None if the answer continues a message.
        system_end: Tokens before the first user turn, which other conversations may share.
        request: Of which the answer is to be parsed.
        options: How.
    """

    ids: list[int]
    turns: list[Turn]
    answer: int | None
    system_end: int
    request: "recipe.ConversationRequest"
    options: "recipe.ParsingOptions"

    def parser(self, stop: Sequence[str] = ()) -> "OutputParser":
        """A parser of the answer to this prompt.

        Args:
            stop: Strings that end the answer; they are not looked for in the reasoning.
        """
        self.options.stop_sequences = list(stop)
        return OutputParser(self.request, self.options)


class ChatEncoding:
    """Renders conversations for one vocabulary and release.

    Args:
        tokenizer: Of the model.
        release: "preview" or "0731": which paragraphs about effort the model knows. None is 0731.
    """

    def __init__(self, tokenizer: Tokenizer, release: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._efforts = _EFFORTS[release or "0731"]
        self._encoding = recipe.DeepseekV4Encoding()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] = (),
        thinking: bool = True,
        effort: Effort | None = None,
        tool_choice: ToolChoice = "auto",
    ) -> ChatPrompt:
        """Token ids of a conversation, up to where the assistant goes on.

        What a user wrote cannot become a control token, whatever it spells. A last message of
        the assistant with ``"prefix": True`` is continued.

        Args:
            messages: As in OpenAI's chat completions, with ``reasoning_content`` beside
                ``content`` and ``tool_calls``. Reasoning before the last user turn is left out
                unless there are tools, as the model was trained.
            tools: As in OpenAI's chat completions: ``{"type": "function", "function": {...}}``.
            thinking: Whether the model is to reason first.
            effort: How much, in words that its release knows; None says nothing.
            tool_choice: "required" needs tools and ``thinking=False``.

        Raises:
            ChatError: the messages or tools cannot be rendered; says which one, and why.
        """
        if effort is not None and effort not in ("low", "high", "max"):
            raise ChatError(f"effort must be low, high, max or None; got {effort!r}")
        _check_mappings("messages", "role and content", messages)
        _check_mappings("tools", "type and function", tools)
        _check_messages(messages)
        _check_choice(tool_choice, tools, thinking=thinking)
        messages = [_with_known_role(message) for message in messages]
        converted = _convert(messages, tools, thinking=thinking, tool_choice=tool_choice)
        asked = converted.conversation
        conversation = recipe.Conversation(
            asked.messages,
            thinking_mode=asked.thinking_mode,
            tools=asked.tools,
            tool_choice=asked.tool_choice,
            reasoning_effort=self._efforts[effort],  # type: ignore[arg-type]
        )
        rendered = self._encoding.render_conversation(conversation)
        ids, specials = self._encode(rendered)
        assistants = [message for message in messages if message["role"] == "assistant"]
        request = recipe.ConversationRequest(conversation, converted.model_version)
        return ChatPrompt(
            ids=ids,
            turns=_turns(specials, assistants),
            answer=_answer(specials, len(assistants)),
            system_end=next((at for at, token in specials if token == USER), 0),
            request=request,
            options=converted.parsing_options,
        )

    def _encode(self, rendered: "recipe.RenderedPrompt") -> tuple[list[int], list[tuple[int, str]]]:
        """Ids, and where in them which special token stands."""
        text, at = rendered.prompt, 0
        ids: list[int] = []
        specials: list[tuple[int, str]] = []
        for start, end in rendered.special_ranges:
            ids += self._tokenizer.encode(text[at:start])
            specials.append((len(ids), text[start:end]))
            ids.append(self._tokenizer.id_of(text[start:end]))
            at = end
        return ids + self._tokenizer.encode(text[at:]), specials


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of an answer, as it arrives; empty strings where there is nothing of a kind.

    Attributes:
        text: More of the answer.
        reasoning: More of what is thought before it.
        calls: (index, id, name, arguments): more of tool calls; id and name in the first piece.
    """

    text: str
    reasoning: str
    calls: tuple[tuple[int, str, str, str], ...]


class OutputParser:
    """Separates reasoning, answer and tool calls of one generation; holds back partial markers.

    Where the marker of a call begins and no call comes of it, what is written from there on comes
    as text at the end, so that nothing is lost.

    Args:
        request: Of the prompt.
        options: Of the prompt.

    Attributes:
        finish_reason: Once the answer has ended: "stop", "length" or "tool_calls".
    """

    def __init__(
        self, request: "recipe.ConversationRequest", options: "recipe.ParsingOptions"
    ) -> None:
        generator = recipe.ChatCompletionRequest.chunk_generator(request, "", _MODEL)
        self._processor = recipe.StreamProcessor(generator, options)
        self.finish_reason: str | None = None
        self._parses_calls = options.parse_tool_calls
        self._starts_in_calls = options.starts_in_tool_calls
        self._called = False
        self._pushed: list[str] = []

    def push(self, text: str) -> Iterator[Piece]:
        """The pieces that more text completes; nothing after a stop string."""
        if self.finish_reason is None:
            self._pushed.append(text)
            yield from self._take(recipe.InferenceChunk.text(text, 1))

    def finish(self, *, length: bool) -> Iterator[Piece]:
        """End the answer; the pieces that were held back.

        Args:
            length: Whether it was cut short.
        """
        reasons = recipe.InferenceFinishReason
        if self.finish_reason is None:
            yield from self._take(
                recipe.InferenceChunk.finish(reasons.Length if length else reasons.Stop)
            )
            if self._parses_calls and not self._called:
                lost = self._begun_call("".join(self._pushed))
                if lost:
                    yield Piece(lost, "", ())

    def _begun_call(self, text: str) -> str:
        """What follows from where a call begins, which the package keeps for itself."""
        if self._starts_in_calls:
            return text
        before, marker, after = text.partition(_CALL_BEGINS)
        space = "\n\n" if before.endswith("\n\n") else ""
        return space + marker + after if marker else ""

    def _take(self, chunk: "recipe.InferenceChunk") -> Iterator[Piece]:
        for update in self._processor.push(chunk):
            for choice in json.loads(update.to_json())["choices"]:
                delta = choice["delta"]
                self.finish_reason = choice["finish_reason"]
                piece = Piece(
                    delta.get("content") or "",
                    delta.get("reasoning_content") or "",
                    tuple(map(_call, delta.get("tool_calls") or ())),
                )
                self._called = self._called or bool(piece.calls)
                if piece.text or piece.reasoning or piece.calls:
                    yield piece


def _call(delta: Mapping[str, Any]) -> tuple[int, str, str, str]:
    function = delta["function"]
    arguments = function.get("arguments") or ""
    return delta["index"], delta.get("id") or "", function.get("name") or "", arguments


def _check_mappings(name: str, keys: str, values: object) -> None:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ChatError(f"{name} must be a list of mappings; got {values!r}")
    for index, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise ChatError(f"{name}[{index}] must be a mapping with {keys}; got {value!r}")


def _check_messages(messages: Sequence[Message]) -> None:
    """Refuse what the package has no clear words for: no messages, or parsed arguments."""
    if not messages:
        raise ChatError("messages must hold at least one message; got none")
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        for number, call in enumerate(calls if isinstance(calls, list | tuple) else ()):
            function = call.get("function") if isinstance(call, Mapping) else None
            arguments = function.get("arguments") if isinstance(function, Mapping) else None
            if isinstance(arguments, Mapping | list):
                raise ChatError(
                    f"messages[{index}].tool_calls[{number}].function.arguments must be a JSON "
                    f"string, as json.dumps gives it; got {arguments!r}"
                )


def _check_choice(tool_choice: object, tools: Sequence[Message], *, thinking: bool) -> None:
    if not tools and tool_choice not in ("auto", "none"):
        raise ChatError(f"tool_choice must be auto or none without tools; got {tool_choice!r}")
    if thinking and (tool_choice == "required" or isinstance(tool_choice, Mapping)):
        raise ChatError(
            f"tool_choice must be auto or none while the model thinks; got {tool_choice!r}: "
            f"ask with thinking=False"
        )


def _with_known_role(message: Message) -> Message:
    # OpenAI's clients say "developer" where DeepSeek's say "system".
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _convert(
    messages: Sequence[Message],
    tools: Sequence[Message],
    *,
    thinking: bool,
    tool_choice: ToolChoice,
) -> "recipe.ConversationRequest":
    body: dict[str, Any] = {
        "model": _MODEL,
        "messages": [dict(message) for message in messages],
        "thinking": {"type": "enabled" if thinking else "disabled"},
    }
    if tools:
        body |= {"tools": [dict(tool) for tool in tools], "tool_choice": tool_choice}
    converted = _request(body)
    if isinstance(converted, str):
        raise ChatError(_place(messages, tools, converted) + converted)
    return converted


def _request(body: dict[str, Any]) -> "recipe.ConversationRequest | str":
    """What the package makes of a request, or why it refuses it."""
    try:
        return recipe.ChatCompletionRequest(body).convert(_OPTIONS)
    except recipe.ConversionError as error:
        return str(json.loads(error.body)["error"]["message"])
    except (TypeError, ValueError, RecursionError) as error:
        return str(error).removeprefix("invalid request body: ")


def _place(messages: Sequence[Message], tools: Sequence[Message], reason: str) -> str:
    """The message or tool that is refused for this reason alone, too, as an error begins."""
    if _OUT_OF_ORDER in reason:
        return ""
    for index, message in enumerate(messages):
        if _request({"model": _MODEL, "messages": [dict(message)]}) == reason:
            return f"messages[{index}]: "
    ask = [{"role": "user", "content": ""}]
    for index, tool in enumerate(tools):
        if _request({"model": _MODEL, "messages": ask, "tools": [dict(tool)]}) == reason:
            return f"tools[{index}]: "
    return ""


def _turns(specials: Sequence[tuple[int, str]], assistants: Sequence[Message]) -> list[Turn]:
    """Where the assistant's turns are; none if the rendering is not one turn per message."""
    begins = [i for i, (_, token) in enumerate(specials) if token == ASSISTANT]
    if len(begins) - len(assistants) not in (0, 1):
        return []
    turns: list[Turn] = []
    for i, message in zip(begins, assistants, strict=False):
        rest = specials[i + 1 :]
        end = next((at for at, token in rest if token == _EOS), None)
        if end is not None and rest[0][1] in (THINK, END_THINK):
            turns.append(Turn(message, rest[0][0] + 1, end, rest[0][1] == THINK))
    return turns


def _answer(specials: Sequence[tuple[int, str]], n_assistants: int) -> int | None:
    """Where the turn begins that no message is of."""
    begins = [i for i, (_, token) in enumerate(specials) if token == ASSISTANT]
    if len(begins) != n_assistants + 1:
        return None
    return specials[begins[-1] + 1][0] + 1
