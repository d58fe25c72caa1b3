"""The example server, asked by OpenAI's own client: it says what the engine says."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Result
from openai_answers import CompletionAnswer
from serving import force, script, serving
from tiny_models import tiny_model

TINY = tiny_model()
CODE = "for row in rows:"
ASKED = [{"role": "user", "content": "What is a span?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = (
    "I look.\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
NO_THINKING = {"thinking": {"type": "disabled"}}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(TINY.path, warm_up=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def address(engine: Engine) -> Iterator[str]:
    with serving(engine) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def counts(result: Result) -> tuple[int, int, int]:
    prompt, generated = result.usage.prompt_tokens, result.usage.generated_tokens
    return prompt, generated, prompt + generated


def counts_of(usage: Any) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def test_the_one_model_is_listed(client: OpenAI) -> None:
    assert [(model.id, model.object) for model in client.models.list()] == [("tiny", "model")]


def test_the_one_model_is_found_by_its_name(client: OpenAI) -> None:
    assert client.models.retrieve("tiny") == client.models.list().data[0]
    for other in ("other", "folder/other"):
        with pytest.raises(
            NotFoundError, match=f'there is no model "{other}": there is "tiny"'
        ) as no:
            client.models.retrieve(other)
        told = no.value.type, no.value.param, no.value.code
        assert told == ("invalid_request_error", "model", "model_not_found")


@pytest.mark.parametrize("ids", [False, True], ids=["text", "token ids"])
def test_a_completion_is_what_the_engine_generates(
    client: OpenAI, engine: Engine, ids: bool
) -> None:
    prompt = [5, 6, 7, 900] if ids else CODE
    sampling = {"temperature": 0.8, "top_p": 0.95, "seed": 3}
    expected = engine.generate(prompt, Params(max_tokens=12, top_k=40, **sampling))
    answer = client.completions.create(
        model="any", prompt=prompt, max_tokens=12, extra_body={"top_k": 40}, **sampling
    )
    assert answer.choices[0].text == expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason == "length"
    assert counts_of(answer.usage) == counts(expected)
    assert answer.model == "tiny"


def test_a_completion_has_sixteen_tokens_unless_told_otherwise(
    client: OpenAI, engine: Engine
) -> None:
    answer = client.completions.create(
        model="any",
        prompt=CODE,
        logit_bias={str(stop): -1000 for stop in engine.tokenizer.stop_ids},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_a_streamed_completion_is_the_whole_one_in_pieces(client: OpenAI, engine: Engine) -> None:
    asked: dict[str, Any] = {"model": "any", "prompt": CODE, "max_tokens": 20, "seed": 5}
    whole = client.completions.create(**asked, logprobs=2).choices[0]
    pieces = [
        piece.choices[0] for piece in client.completions.create(**asked, logprobs=2, stream=True)
    ]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    told = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    assert whole.logprobs is not None
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [value for part in told for value in getattr(part, name)]
        assert joined == getattr(whole.logprobs, name)
    expected = engine.generate(CODE, Params(max_tokens=20, seed=5, logprobs=2))
    n_told = len(whole.logprobs.token_logprobs or [])
    assert n_told > 10
    assert whole.logprobs.token_logprobs == [token.logprob for token in expected.logprobs][:n_told]


def test_text_offsets_count_characters(client: OpenAI, engine: Engine) -> None:
    """Tokens of ASCII letters: each begins where those before it end."""
    ascii_ids = [i for i in range(engine.config.vocab) if engine.tokenizer.bytes_of(i).isalpha()]
    bias = {str(i): 1000 for i in ascii_ids[:200]}
    answer = client.completions.create(
        model="any", prompt=CODE, max_tokens=6, logprobs=0, logit_bias=bias
    )
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.tokens is not None
    assert "".join(told.tokens) == answer.choices[0].text
    assert told.text_offset == [len("".join(told.tokens[:i])) for i in range(6)]


def test_text_offsets_do_not_count_control_tokens(engine: Engine) -> None:
    answer = CompletionAnswer({"logprobs": 0}, engine.tokenizer, "tiny")
    params = Params(logprobs=0, allowed_tokens=script(engine, "a<｜begin▁of▁sentence｜>b"))
    events = list(engine.stream("x", params))
    for event in events:
        answer.choice_of(event)
    told = answer.whole(events[-1].result)["choices"][0]
    assert told["text"] == "ab"
    assert told["logprobs"]["tokens"] == ["a", "<｜begin▁of▁sentence｜>", "b"]
    assert told["logprobs"]["text_offset"] == [0, 1, 1]


@pytest.mark.parametrize("thinking", [True, False])
def test_a_chat_is_what_the_engine_answers(client: OpenAI, engine: Engine, thinking: bool) -> None:
    expected = engine.chat(ASKED, Params(max_tokens=30, seed=11), thinking=thinking)
    extra = {} if thinking else NO_THINKING
    answer = client.chat.completions.create(
        model="any", messages=ASKED, max_tokens=30, seed=11, extra_body=extra
    )
    message = answer.choices[0].message
    assert message.role == "assistant"
    assert message.content == expected.text
    assert getattr(message, "reasoning_content", "") == expected.reasoning
    assert expected.reasoning if thinking else expected.text
    assert answer.choices[0].finish_reason == expected.finish_reason
    assert counts_of(answer.usage) == counts(expected)


def test_a_streamed_chat_is_the_whole_one_in_pieces(
    client: OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, engine, "A run of tokens.</think>It is 4 long, é or ✓.")
    asked: dict[str, Any] = {"model": "any", "messages": ASKED, "logprobs": True}
    asked["top_logprobs"] = 1
    whole = client.chat.completions.create(**asked)
    pieces = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    last = pieces.pop()
    assert last.choices == []
    assert counts_of(last.usage) == counts_of(whole.usage)
    deltas = [piece.choices[0].delta for piece in pieces]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == "It is 4 long, é or ✓."
    reasoning = "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas)
    assert reasoning == "A run of tokens."
    message = whole.choices[0].message
    assert (message.content, message.reasoning_content) == ("It is 4 long, é or ✓.", reasoning)
    assert [piece.choices[0].finish_reason for piece in pieces][-2:] == [None, "stop"]
    told = [piece.choices[0].logprobs for piece in pieces]
    assert whole.choices[0].logprobs is not None
    content = [token for part in told if part for token in part.content or ()]
    assert content == whole.choices[0].logprobs.content
    spelled = b"".join(bytes(token.bytes or ()) for token in content)
    # The token that ends the reasoning is told with the first of the answer.
    assert spelled.decode() == "</think>It is 4 long, é or ✓."
    assert all(len(token.top_logprobs) == 1 for token in content)


@pytest.mark.parametrize(
    ("text", "limit", "reasoning"),
    [
        ("A run of rows.</think>Yes.", None, "A run of rows."),
        ("</think>Yes.", None, ""),
        ("A run of rows.</think>Yes.", 3, None),
    ],
    ids=["reasoning", "none", "cut"],
)
def test_the_tokens_of_the_reasoning_are_counted(
    client: OpenAI,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    limit: int | None,
    reasoning: str | None,
) -> None:
    force(monkeypatch, engine, text)
    answer = client.chat.completions.create(
        model="any", messages=ASKED, max_completion_tokens=limit
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    expected = limit if reasoning is None else len(engine.tokenizer.encode(reasoning))
    assert answer.usage.completion_tokens_details.reasoning_tokens == expected


def test_an_answer_without_reasoning_has_no_tokens_of_it(
    client: OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, engine, "Yes.")
    with client.chat.completions.stream(
        model="any",
        messages=ASKED,
        extra_body=NO_THINKING,
        stream_options={"include_usage": True},
    ) as stream:
        usage = stream.get_final_completion().usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_a_tool_call_makes_the_round(
    client: OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, engine, CALL)
    asked: dict[str, Any] = {"model": "any", "tools": [WEATHER], "extra_body": NO_THINKING}
    first = client.chat.completions.create(messages=ASKED, **asked)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content == "I look."
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Paris"}

    asks = force(monkeypatch, engine, "Sunny.")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [*ASKED, message.model_dump(exclude_none=True), result]
    second = client.chat.completions.create(messages=messages, **asked)
    assert second.choices[0].message.content == "Sunny."
    assert second.choices[0].finish_reason == "stop"
    assert asks[0]["messages"][1]["tool_calls"][0]["id"] == call.id
    # The answer goes on from the tokens as they were sampled: all but its last one are cached.
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    read = first.usage.prompt_tokens + first.usage.completion_tokens - 1
    assert second.usage.prompt_tokens_details.cached_tokens == read


def test_a_tool_call_is_streamed_in_deltas(
    client: OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, engine, CALL)
    with client.chat.completions.stream(
        model="any", messages=ASKED, tools=[WEATHER], extra_body=NO_THINKING
    ) as stream:
        deltas = [
            event.chunk.choices[0].delta.tool_calls[0]
            for event in stream
            if event.type == "chunk" and event.chunk.choices[0].delta.tool_calls
        ]
        final = stream.get_final_completion().choices[0]
    assert deltas[0].id is not None
    assert deltas[0].type == "function"
    assert {(delta.index, delta.id, delta.type) for delta in deltas[1:]} == {(0, None, None)}
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls is not None
    assert json.loads(final.message.tool_calls[0].function.arguments) == {"city": "Paris"}


def test_the_second_turn_reads_what_is_added(client: OpenAI, engine: Engine) -> None:
    asked: dict[str, Any] = {"model": "any", "max_tokens": 8, "seed": 1, "extra_body": NO_THINKING}
    messages: list[Any] = [{"role": "user", "content": "unlike the others " * 60}]
    first = client.chat.completions.create(messages=messages, **asked)
    messages += [first.choices[0].message.model_dump(exclude_none=True), ASKED[0]]
    second = client.chat.completions.create(messages=messages, **asked)
    assert first.usage is not None
    assert first.usage.prompt_tokens > 128
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached == first.usage.prompt_tokens + first.usage.completion_tokens - 1


def test_clients_at_the_same_time_get_their_own_answers(address: str, engine: Engine) -> None:
    prompts = [f"def attend_{i}(rows):" for i in range(6)]

    async def ask_all() -> list[str]:
        async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:

            async def ask(prompt: str) -> str:
                stream = await client.completions.create(
                    model="any", prompt=prompt, max_tokens=24, temperature=0, stream=True
                )
                return "".join([piece.choices[0].text async for piece in stream])

            return await asyncio.gather(*map(ask, prompts))

    expected = [engine.generate(p, Params(max_tokens=24, temperature=0)).text for p in prompts]
    assert asyncio.run(ask_all()) == expected
    assert len(set(expected)) == len(prompts)
