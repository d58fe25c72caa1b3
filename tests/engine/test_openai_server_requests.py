"""What the example server understands of a request, and what it refuses."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mlx_dsv4 import Engine, Params
from openai_requests import spelled
from serving import force, serving
from tiny_models import tiny_model

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(tiny_model().path, warm_up=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def http(engine: Engine) -> Iterator[httpx.Client]:
    with (
        serving(engine, most_body_bytes=100_000) as address,
        httpx.Client(base_url=address, timeout=60) as http,
    ):
        yield http


DEEP = {
    "type": "function",
    "function": {"name": "f", "parameters": json.loads("[" * 200 + "]" * 200)},
}
DEEP_CALL = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[" * 3000}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": 3},
]
REFUSED = [
    ({"n": 2}, "n"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"functions": [{}]}, "functions"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"messages": None}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": []}, None),
    ({"messages": [{"role": "robot", "content": "a"}]}, None),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, None),
    ({"tools": "weather"}, "tools"),
    ({"tools": [1]}, "tools"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": 3}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": "x"}, "tools": [WEATHER]}, "function"),
    ({"tool_choice": "required", "tools": [WEATHER]}, None),
    ({"tool_choice": "required", "thinking": {"type": "disabled"}}, None),
    ({"reasoning_effort": "enormous"}, "reasoning_effort"),
    ({"reasoning_effort": ["low"]}, "reasoning_effort"),
    ({"thinking": {"type": "perhaps"}}, "thinking"),
    ({"thinking": True}, "thinking"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 10**400}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"5000": 1}}, None),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["\ud800"]}, "stop"),
    ({"tools": [DEEP]}, None),
    ({"messages": DEEP_CALL}, None),
]
COMPLETIONS_REFUSED = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": ""}, None),
    ({"prompt": [5000]}, None),
    ({"prompt": [True]}, None),
    ({"prompt": [1] * 5000}, None),
    ({"prompt": "\ud800"}, None),
    ({"best_of": 2}, "best_of"),
    ({"echo": True}, "echo"),
    ({"suffix": "end"}, "suffix"),
]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        *(("chat/completions", {**CHAT, **body}, param) for body, param in REFUSED),
        *(("completions", {"prompt": "a", **body}, param) for body, param in COMPLETIONS_REFUSED),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    http: httpx.Client, engine: Engine, path: str, body: dict[str, Any], param: str | None
) -> None:
    response = http.post(f"/v1/{path}", content=json.dumps(body))
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert (param or "") in error["message"]
    assert engine.status().running == 0


MESSAGES = [
    ({"logprobs": True, "top_logprobs": 25}, "top_logprobs must be an integer in 0..20; got 25"),
    ({"max_completion_tokens": 0}, "max_completion_tokens must be an integer >= 1; got 0"),
    ({"temperature": 2.5}, "temperature must be a number in 0..2; got 2.5"),
    ({"temperature": -0.1}, "temperature must be a number in 0..2; got -0.1"),
    ({"temperature": True}, "temperature must be a number in 0..2; got true"),
    ({"frequency_penalty": -2.01}, "frequency_penalty must be a number in -2..2; got -2.01"),
    ({"presence_penalty": 3}, "presence_penalty must be a number in -2..2; got 3"),
    ({"stop": ""}, 'stop must be strings of at least one character; got ""'),
    ({"stop": ["é", 5]}, 'stop must be strings of at least one character; got ["é", 5]'),
    (
        {"logit_bias": {"5": None}},
        'logit_bias[5] must be a number >= -1e+30 and <= 1e+30; got {"5": null}',
    ),
    (
        {"parallel_tool_calls": False},
        "parallel_tool_calls is not supported: it must be true; got false",
    ),
    ({"thinking": True}, "thinking must be an object; got true"),
    ({"messages": "é" * 500}, f'messages must be an array; got "{"é" * 199}...'),
]
COMPLETION_MESSAGES = [
    ({}, "prompt must be a string or an array of token ids; it is missing"),
    ({"prompt": None}, "prompt must be a string or an array of token ids; got null"),
    ({"prompt": {"a": True}}, 'prompt must be a string or an array of token ids; got {"a": true}'),
    ({"prompt": "a", "echo": True}, "echo is not supported: it must be false; got true"),
    ({"prompt": "a", "logprobs": 21}, "logprobs must be an integer in 0..20; got 21"),
]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        *(("chat/completions", {**CHAT, **body}, message) for body, message in MESSAGES),
        *(("completions", body, message) for body, message in COMPLETION_MESSAGES),
    ],
)
def test_a_refusal_says_what_came_in_the_words_of_the_client(
    http: httpx.Client, path: str, body: dict[str, Any], message: str
) -> None:
    response = http.post(f"/v1/{path}", json=body)
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)


def test_the_ends_of_the_ranges_may_be_asked_for(http: httpx.Client) -> None:
    for temperature, penalty in ((0, -2), (2, 2)):
        body = {"prompt": "a", "max_tokens": 2, "temperature": temperature}
        body |= {"presence_penalty": penalty, "frequency_penalty": penalty}
        assert http.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b'{"a": 1,\n "b" 2}', "line 2 column 6 (char 14)"),
        (b'{"a": "\xff"}', "byte 0xff in position 7"),
        (b"[" * 90_000, "nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "an integer has too many digits"),
    ],
)
def test_wrong_json_is_told_with_its_position(
    http: httpx.Client, content: bytes, where: str
) -> None:
    message = http.post("/v1/completions", content=content).json()["error"]["message"]
    assert message.startswith("the body must be JSON: ")
    assert where in message


def test_a_value_that_json_cannot_spell_is_told_too() -> None:
    """Nested as deep as could be read is one level too deep for an error further down."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert spelled({"a": nested}) == "a value that is nested too deeply"
    assert spelled(["\ud800"]) == '["\\ud800"]'


@pytest.mark.parametrize(
    "content", [b"", b"hello", b'{"a":', b"[1]", b"3", b"null", b"[" * 90_000, b"\xff\xfe{"]
)
def test_a_body_must_be_a_json_object(http: httpx.Client, content: bytes) -> None:
    response = http.post("/v1/chat/completions", content=content)
    assert response.status_code == 400
    assert "the body must be" in response.json()["error"]["message"]


def test_fields_nobody_knows_are_passed_over(http: httpx.Client) -> None:
    body = {"user": "u", "store": True, "n": 1, "logit_bias": None, "surprise": [1]}
    body |= {"response_format": {"type": "text"}, "max_tokens": 2}
    assert http.post("/v1/chat/completions", json=CHAT | body).status_code == 200


def long_body() -> Iterator[bytes]:
    """Its length is not told."""
    for _ in range(2000):
        yield b" " * 10_000


def test_a_body_too_large_is_refused_while_it_is_read(http: httpx.Client) -> None:
    told = http.post("/v1/completions", json={"prompt": "a" * 100_000})
    untold = http.post("/v1/completions", content=long_body())
    assert told.status_code == untold.status_code == 413
    assert told.json()["error"]["message"] == "the body must have at most 100000 bytes"
    most = {"prompt": [1], "max_tokens": 1, "user": ""}
    most["user"] = "u" * (100_000 - len(json.dumps(most)))
    assert http.post("/v1/completions", content=json.dumps(most)).status_code == 200


def test_paths_and_methods_that_are_not_served(http: httpx.Client) -> None:
    for response, status in (
        (http.get("/v1/embeddings"), 404),
        (http.get("/v1/completions"), 405),
        (http.post("/health"), 405),
    ):
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_other_origins_get_no_leave(http: httpx.Client) -> None:
    response = http.get("/v1/models", headers={"Origin": "http://elsewhere"})
    assert not [name for name in response.headers if name.startswith("access-control")]


FIELDS = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.01,
    "seed": 3,
    "stop": ["END", "STOP"],
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.3,
}


def test_each_field_reaches_the_engine(
    http: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = force(monkeypatch, engine, "</think>Yes.")
    http.post("/v1/chat/completions", json=CHAT | FIELDS | {"logit_bias": {"5": 2.5}})
    http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 5})
    http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 5, "max_completion_tokens": 6})
    http.post("/v1/chat/completions", json=CHAT | {"logprobs": True})
    http.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "top_logprobs": 4})
    assert [ask["params"] for ask in asked] == [
        Params(**FIELDS, logit_bias={5: 2.5}),
        Params(max_tokens=5),
        Params(max_tokens=6),
        Params(logprobs=0),
        Params(logprobs=4),
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (True, None)),
        ({"thinking": {"type": "enabled"}}, (True, None)),
        ({"thinking": {"type": "disabled"}}, (False, None)),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, (False, "max")),
        ({"reasoning_effort": "none"}, (False, None)),
        ({"reasoning_effort": "minimal"}, (True, "low")),
        ({"reasoning_effort": "low"}, (True, "low")),
        ({"reasoning_effort": "medium"}, (True, "high")),
        ({"reasoning_effort": "high"}, (True, "high")),
        ({"reasoning_effort": "max"}, (True, "max")),
    ],
)
def test_how_much_to_think_reaches_the_engine(
    http: httpx.Client,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    body: dict[str, Any],
    expected: tuple[bool, str | None],
) -> None:
    asked = force(monkeypatch, engine, "</think>Yes.")
    assert http.post("/v1/chat/completions", json=CHAT | body).status_code == 200
    assert (asked[0]["thinking"], asked[0]["effort"]) == expected


def test_a_named_tool_is_required_alone(
    http: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}
    choice = {"type": "function", "function": {"name": "weather"}}
    body = {"tools": [other, WEATHER], "tool_choice": choice, "reasoning_effort": "none"}
    asked = force(monkeypatch, engine, '<｜DSML｜invoke name="weather">\n</｜DSML｜invoke>\n')
    assert http.post("/v1/chat/completions", json=CHAT | body).status_code == 200
    assert (asked[0]["tools"], asked[0]["tool_choice"]) == ([WEATHER], "required")
