"""What the example server understands of a request, and what it refuses."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from mlx_dsv4 import Engine, Params
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
    ({"temperature": "hot"}, None),
    ({"temperature": 10**400}, None),
    ({"max_tokens": 0}, None),
    ({"max_completion_tokens": 1.5}, None),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"5000": 1}}, None),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, None),
    ({"stop": [""]}, None),
    ({"stop": ["\ud800"]}, None),
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
