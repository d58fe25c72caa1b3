"""The engine's events to OpenAI's JSON.

Nothing here knows about HTTP: `openai_server.py` does.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar
from uuid import uuid4

from mlx_dsv4.engine import Done, Event, Reasoning, Result, Text, TokenLogprob, ToolCallDelta
from mlx_dsv4.text import Tokenizer
from mlx_dsv4.text.chat import END_THINK
from openai_requests import Json, read_field


class Answer(ABC):
    """One answer in OpenAI's words: piece by piece, or whole once all pieces have been seen.

    Args:
        body: Of the request.
        tokenizer: Of the model.
        model_name: That the answer tells.
    """

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    kind_of_piece: ClassVar[str]

    def __init__(self, body: Json, tokenizer: Tokenizer, model_name: str) -> None:
        options = read_field(body, "stream_options", dict, {})
        self._tells_usage = read_field(options, "include_usage", bool, False)
        self._tokenizer = tokenizer
        self._head = {
            "id": f"{self.id_prefix}-{uuid4().hex}",
            "created": int(time.time()),
            "model": model_name,
        }

    def pieces(self, event: Event) -> Iterator[Json]:
        """The chunks that an event becomes; the last one brings the reason and the usage."""
        choice = self.choice_of(event)
        if isinstance(event, Done):
            yield self._piece([self.last_choice(event.result)])
            if self._tells_usage:
                yield self._piece([]) | {"usage": self._usage(event.result)}
        elif choice is not None:
            yield self._piece([choice])

    def whole(self, result: Result) -> Json:
        """The answer at once; :meth:`choice_of` must have seen its events."""
        choice = self.whole_choice(result) | {"finish_reason": result.finish_reason}
        return self._head | {
            "object": self.kind,
            "choices": [choice],
            "usage": self._usage(result),
        }

    @abstractmethod
    def choice_of(self, event: Event) -> Json | None:
        """What a chunk says of an event; None if nothing. Keeps the logprobs."""

    @abstractmethod
    def last_choice(self, result: Result) -> Json:
        """What the chunk after the last piece says."""

    @abstractmethod
    def whole_choice(self, result: Result) -> Json:
        """The answer, without the reason for its end."""

    def _usage(self, result: Result) -> Json:
        """Counts of tokens; those that were not computed again are the cached ones."""
        usage = result.usage
        return {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.generated_tokens,
            "total_tokens": usage.prompt_tokens + usage.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        }

    def _piece(self, choices: list[Json]) -> Json:
        piece = self._head | {"object": self.kind_of_piece, "choices": choices}
        return piece | {"usage": None} if self._tells_usage else piece


class ChatAnswer(Answer):
    """The answer of ``/v1/chat/completions``."""

    id_prefix, kind, kind_of_piece = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, body: Json, tokenizer: Tokenizer, model_name: str) -> None:
        super().__init__(body, tokenizer, model_name)
        self._logprobs: Json | None = None
        if body.get("logprobs"):
            self._logprobs = {"content": [], "reasoning_content": []}
        self._role = {"role": "assistant"}

    def choice_of(self, event: Event) -> Json | None:
        match event:
            case Text(text, logprobs):
                return self._choice({"content": text}, "content", logprobs)
            case Reasoning(text, logprobs):
                return self._choice({"reasoning_content": text}, "reasoning_content", logprobs)
            case ToolCallDelta():
                return self._choice({"tool_calls": [call_delta(event)]})
        return None

    def last_choice(self, result: Result) -> Json:
        return self._choice({}) | {"finish_reason": result.finish_reason}

    def whole_choice(self, result: Result) -> Json:
        return {"index": 0, "message": result.message, "logprobs": self._logprobs}

    def _usage(self, result: Result) -> Json:
        n_tokens = reasoning_tokens(result, self._tokenizer.find(END_THINK))
        return super()._usage(result) | {
            "completion_tokens_details": {"reasoning_tokens": n_tokens}
        }

    def _choice(
        self, delta: Json, part: str = "content", logprobs: Sequence[TokenLogprob] = ()
    ) -> Json:
        # The first delta has the role.
        delta, self._role = self._role | delta, {}
        told = None
        if self._logprobs is not None:
            told = {part: [self._token(token) for token in logprobs]}
            self._logprobs[part] += told[part]
        return {"index": 0, "delta": delta, "logprobs": told, "finish_reason": None}

    def _token(self, token: TokenLogprob) -> Json:
        top = [self._probability(*likely) for likely in token.top]
        return self._probability(token.token, token.logprob) | {"top_logprobs": top}

    def _probability(self, token_id: int, logprob: float) -> Json:
        spelled = self._tokenizer.bytes_of(token_id)
        text = spelled.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(spelled)}


class CompletionAnswer(Answer):
    """The answer of ``/v1/completions``."""

    id_prefix, kind, kind_of_piece = "cmpl", "text_completion", "text_completion"

    def __init__(self, body: Json, tokenizer: Tokenizer, model_name: str) -> None:
        super().__init__(body, tokenizer, model_name)
        self._logprobs: Json | None = None
        if body.get("logprobs") is not None:
            self._logprobs = {
                "tokens": [],
                "token_logprobs": [],
                "top_logprobs": [],
                "text_offset": [],
            }
        self._detokenizer = tokenizer.stream(control=False)
        self._offset = 0

    def choice_of(self, event: Event) -> Json | None:
        if not isinstance(event, Text):
            return None
        told = None
        if self._logprobs is not None:
            told = self._told(event.logprobs)
            for name, values in told.items():
                self._logprobs[name] += values
        return {"index": 0, "text": event.text, "logprobs": told, "finish_reason": None}

    def last_choice(self, result: Result) -> Json:
        reason = result.finish_reason
        return {"index": 0, "text": "", "logprobs": None, "finish_reason": reason}

    def whole_choice(self, result: Result) -> Json:
        return {"index": 0, "text": result.text, "logprobs": self._logprobs}

    def _told(self, tokens: Sequence[TokenLogprob]) -> Json:
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._detokenizer.push(token.token))
        return {
            "tokens": [self._spelled(token.token) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{self._spelled(i): p for i, p in token.top} for token in tokens],
            "text_offset": offsets,
        }

    def _spelled(self, token_id: int) -> str:
        return self._tokenizer.decode([token_id])


def call_delta(event: ToolCallDelta) -> Json:
    """A piece of a tool call; id and name come with the first."""
    if not event.id:
        return {"index": event.index, "function": {"arguments": event.arguments}}
    function = {"name": event.name, "arguments": event.arguments}
    return {"index": event.index, "id": event.id, "type": "function", "function": function}


def reasoning_tokens(result: Result, end_think: int | None) -> int:
    """How many of the generated tokens are reasoning; without the one that ends it."""
    if not result.reasoning:
        return 0
    return result.tokens.index(end_think) if end_think in result.tokens else len(result.tokens)
