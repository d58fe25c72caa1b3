"""Requests of a soak, drawn from a seed: well-formed, at the limits, and malformed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Session, Stream
from mlx_dsv4.errors import ChatError, Dsv4Error, ParamsError, PromptError

WORDS = "the row of a span is read and then one more, by the ring of the window".split()  # noqa: SIM905
ADD_TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
NAN = float("nan")


class HookError(Exception):
    """What the hook of a request raises."""


@dataclass(frozen=True)
class Script:
    """Allows nothing but the tokens of a script, then anything."""

    vocab: int
    tokens: tuple[int, ...]

    def __call__(self, generated: Sequence[int]) -> np.ndarray | None:
        if len(generated) >= len(self.tokens):
            return None
        return np.arange(self.vocab) == self.tokens[len(generated)]


@dataclass(frozen=True)
class Strided:
    """Allows every third token, others at each position."""

    vocab: int

    def __call__(self, generated: Sequence[int]) -> np.ndarray:
        return np.arange(self.vocab) % 3 == len(generated) % 3


@dataclass(frozen=True)
class Raising:
    """Raises after some tokens."""

    after: int

    def __call__(self, generated: Sequence[int]) -> None:
        if len(generated) == self.after:
            raise HookError


@dataclass(frozen=True)
class Ask:
    """One request.

    Args:
        kind: In words.
        call: Submits it.
        params: It is asked with.
        errors: Types that it may end with.
        must_fail: Whether it has to.
        prompt: Token ids, where they are known before.
    """

    kind: str
    call: Callable[[Engine | Session], Stream]
    params: Params = field(default_factory=Params)
    errors: tuple[type[Exception], ...] = ()
    must_fail: bool = False
    prompt: tuple[int, ...] | None = None

    @property
    def chat(self) -> bool:
        return self.prompt is None


class Maker:
    """Draws requests.

    Args:
        engine: That they are for.
        random: Whose draws they follow from.
    """

    def __init__(self, engine: Engine, random: Random) -> None:
        self.random = random
        self.vocab = engine.config.vocab
        self.context = engine.info.context
        self._tokenizer = engine.tokenizer
        # The same for every maker, so that clients share prompts.
        shared = Random(0)
        self._repeated = [self._tokens(n, shared) for n in (40, 200, 300, 420)]
        self._systems = [" ".join(shared.choices(WORDS, k=150)) for _ in range(2)]
        self._call = _call_script(engine)

    def plain(self) -> Ask:
        """A prompt of ids: short, long, or one that others send too; at times grown."""
        if self.random.random() < 0.5:
            prompt = self.random.choice(self._repeated)
            if self.random.random() < 0.5:
                prompt = prompt + self._tokens(self.random.choice((1, 30, 90)))
            return self.of("repeated prompt", prompt, self.params())
        n = self.random.choice((1, 2, 17, 128, 129, 300, 500))
        return self.of(f"prompt of {n}", self._tokens(n), self.params())

    def of(self, kind: str, prompt: Sequence[int], params: Params) -> Ask:
        """A request for a prompt that fits the context, if nothing is wrong with it."""
        return Ask(kind, lambda to: to.stream(prompt, params), params, prompt=tuple(prompt))

    def at_the_context(self) -> Ask:
        """A prompt that leaves room for one token, or for a few."""
        n = self.context - self.random.choice((0, 0, 1, 3))
        params = Params(temperature=0, max_tokens=self.random.choice((None, 2)))
        return self.of("prompt of the context", (self._repeated[3] * 9)[:n], params)

    def hook_that_raises(self) -> Ask:
        params = Params(allowed_tokens=Raising(self.random.randrange(4)), max_tokens=5, seed=0)
        prompt = self.random.choice(self._repeated)
        return Ask(
            "hook that raises",
            lambda to: to.stream(prompt, params),
            params,
            (HookError,),
            prompt=tuple(prompt),
        )

    def malformed(self) -> Ask:
        """Something that must be refused, with the error of its kind."""
        kind, error, call = self.random.choice(self._malformed())
        return Ask(f"malformed: {kind}", call, errors=(error,), must_fail=True)

    def question(self, messages: list[dict[str, Any]], *, tools: bool, thinking: bool) -> Ask:
        """The next turn of a conversation; with tools the answer is at times made a call."""
        params, kind = self.params(), "chat with tools" if tools else "chat"
        if tools and not thinking and self.random.random() < 0.6:
            params = Params(allowed_tokens=Script(self.vocab, self._call), temperature=0)
        sent, given = list(messages), [ADD_TOOL] if tools else []
        return Ask(
            f"{kind}, {'thinking' if thinking else 'not thinking'}",
            lambda to: to.stream_chat(sent, params, tools=given, thinking=thinking),
            params,
            (PromptError,),  # the conversation has outgrown the context
        )

    def system(self) -> dict[str, Any]:
        return {"role": "system", "content": self.random.choice(self._systems)}

    def user(self) -> dict[str, Any]:
        words = self.random.choices(WORDS, k=self.random.choice((1, 5, 30)))
        return {"role": "user", "content": " ".join(words)}

    def params(self) -> Params:
        pick = self.random.choice
        return Params(
            max_tokens=pick((1, 2, 8, 20, 40)),
            temperature=pick((0, 0, 0.7, 1.0)),
            top_k=pick((0, 0, 20)),
            top_p=pick((1.0, 0.9)),
            min_p=pick((0.0, 0.05)),
            seed=self.random.randrange(3),
            logprobs=pick((None, None, 0, 3)),
            stop=pick(((), (), ("e",), ("th", "\n"))),
            stop_ids=pick(((), (), tuple(range(300, 320)))),
            repetition_penalty=pick((1.0, 1.0, 1.3)),
            presence_penalty=pick((0.0, 0.0, 0.5)),
            logit_bias=pick(({}, {}, {400: 5.0})),
            allowed_tokens=pick((None, None, None, Strided(self.vocab))),
        )

    def _tokens(self, n: int, random: Random | None = None) -> list[int]:
        return (random or self.random).choices(range(3, 900), k=n)

    def _malformed(self) -> list[tuple[str, type[Dsv4Error], Callable[[Engine | Session], Stream]]]:
        vocab, hi = self.vocab, [{"role": "user", "content": "hi"}]

        def hook(mask: object) -> Callable[[Engine | Session], Stream]:
            return lambda to: to.stream([5], Params(allowed_tokens=lambda _: mask))  # type: ignore[arg-type, return-value]

        return [
            ("no tokens", PromptError, lambda to: to.stream([])),
            ("no text", PromptError, lambda to: to.stream("")),
            ("lone surrogate", PromptError, lambda to: to.stream("a\ud800")),
            ("token too large", PromptError, lambda to: to.stream([5, vocab])),
            ("negative token", PromptError, lambda to: to.stream([-1])),
            ("float token", PromptError, lambda to: to.stream([1.5])),
            ("over-long prompt", PromptError, lambda to: to.stream([5] * (self.context + 1))),
            ("temperature NaN", ParamsError, lambda to: to.stream([5], Params(temperature=NAN))),
            ("top_p NaN", ParamsError, lambda to: to.stream([5], Params(top_p=NAN))),
            ("bias NaN", ParamsError, lambda to: to.stream([5], Params(logit_bias={1: NAN}))),
            ("bias", ParamsError, lambda to: to.stream([5], Params(logit_bias={vocab: 1.0}))),
            ("stop id", ParamsError, lambda to: to.stream([5], Params(stop_ids=(vocab,)))),
            ("max_tokens 0", ParamsError, lambda to: to.stream([5], Params(max_tokens=0))),
            ("empty stop", ParamsError, lambda to: to.stream([5], Params(stop=("",)))),
            ("mask of ints", ParamsError, hook(np.ones(vocab, np.int32))),
            ("mask too short", ParamsError, hook(np.ones(vocab - 1, bool))),
            ("mask of nothing", ParamsError, hook(np.zeros(vocab, bool))),
            ("no messages", ChatError, lambda to: to.stream_chat([])),
            ("no mapping", ChatError, lambda to: to.stream_chat(["hi"])),  # type: ignore[list-item]
            ("role", ChatError, lambda to: to.stream_chat([{"role": "x", "content": "hi"}])),
            ("no content", ChatError, lambda to: to.stream_chat([{"role": "user"}])),
            ("effort", ChatError, lambda to: to.stream_chat(hi, effort="huge")),  # type: ignore[arg-type]
            ("effort list", ChatError, lambda to: to.stream_chat(hi, effort=[])),  # type: ignore[arg-type]
            ("tool of no type", ChatError, lambda to: to.stream_chat(hi, tools=[{}])),
            ("tool 5", ChatError, lambda to: to.stream_chat(hi, tools=[5])),  # type: ignore[list-item]
            ("prompt None", PromptError, lambda to: to.stream(None)),  # type: ignore[arg-type]
        ]


def _call_script(engine: Engine) -> tuple[int, ...]:
    """The tokens of an answer that calls the tool, as the chat encoding writes it."""
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    answer = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call", "type": "function", "function": function}],
    }
    messages = [{"role": "user", "content": "hi"}, answer]
    messages.append({"role": "tool", "tool_call_id": "call", "content": "3"})
    encoding, _ = engine.chat_parts()
    prompt = encoding.render(messages, tools=[ADD_TOOL], thinking=False)
    (turn,) = prompt.turns
    return tuple(prompt.ids[turn.start : turn.end + 1])
