"""Conversations to tokens, against DeepSeek's own encoder and against texts typed by hand."""

import json
from collections.abc import Sequence
from typing import Any

import deepseek_recipe as recipe
import pytest

from mlx_dsv4.errors import ChatError
from mlx_dsv4.text import ChatEncoding, Tokenizer

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "天气 of a place",
        "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
SPELLINGS = (
    f"{USER}x{ASSISTANT}</think> {BOS}{EOS} <think> ｜DSML｜ <｜DSML｜tool_calls> "
    "</｜DSML｜parameter> <tool_result></tool_result>"
)


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str, reasoning: str | None = None, *calls: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message | ({"tool_calls": list(calls)} if calls else {})


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


AGENT = [
    system("Be brief."),
    user("weather in 北京 and Zürich?"),
    assistant(
        "Let me look.",
        "two places",
        call("c1", "weather", '{"z": "北京", "a": 3}'),
        call("c2", "weather", '{"a": [1, {"y": 2, "x": null}], "z": "ls 2>&1 <"}'),
    ),
    result("c2", "rain"),
    result("c1", "sun ☀️"),
    assistant("", "and the time", call("c3", "clock", "{}")),
    result("c3", "12:30"),
    assistant("Sun in 北京, rain in Zürich.", "done"),
    user("Thanks. 1234567 and 12.5"),
]
TALKS: dict[str, list[dict[str, Any]]] = {
    "one": [user("Hi")],
    "empty": [user("")],
    "system": [system("You are 助手."), user("你好,今天是2024年12月25日?")],
    "turns": [user("a"), assistant("b", "r"), user("c"), assistant("d", "s"), user("e")],
    "no reasoning": [user("a"), assistant("b"), user("c")],
    "users": [user("a"), user("b"), assistant("x"), user("c")],
    "unicode": [
        user("👩\u200d👧 e\u0301 \u200b\ufeff \U0010ffff"),
        assistant("ß\r\n\t "),
        user("ÿ"),
    ],
    "code": [
        user('def f():\n    return {"a": 1}  # 12345\n\n\n'),
        assistant("```\n"),
        user(" \n "),
    ],
    "spelled": [
        system(SPELLINGS),
        user(SPELLINGS),
        assistant(SPELLINGS, SPELLINGS),
        user("<think>"),
    ],
    "agent": AGENT,
    "spelled calls": [
        user(SPELLINGS),
        assistant("", SPELLINGS, call("i", "clock", json.dumps({"t": SPELLINGS, SPELLINGS: 1}))),
        result("i", SPELLINGS),
    ],
}


@pytest.fixture(scope="module")
def encoding(tokenizer: Tokenizer) -> ChatEncoding:
    return ChatEncoding(tokenizer, "0731")


@pytest.fixture(scope="module")
def official(tokenizer_json: dict[str, Any]) -> recipe.DeepseekV4Encoding:
    read = recipe.Tokenizer.from_str(json.dumps(tokenizer_json))
    return recipe.DeepseekV4Encoding().with_tokenizer(read)


def official_message(message: dict[str, Any], *, thinking: bool) -> recipe.Message:
    content = message["content"]
    match message["role"]:
        case "system":
            return recipe.SystemMessage(content)
        case "user":
            return recipe.UserMessage(content)
        case "tool":
            return recipe.ToolMessage(content, message["tool_call_id"])
    calls = [
        recipe.ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"])
        for c in message.get("tool_calls", ())
    ]
    return recipe.AssistantMessage(
        content,
        message.get("reasoning_content", "") if thinking else None,
        calls or None,
        prefix=message.get("prefix", False),
    )


def official_tools(tools: Sequence[dict[str, Any]]) -> list[recipe.ToolDefinition]:
    return [
        recipe.ToolDefinition(f["name"], f.get("description"), f["parameters"])
        for f in (tool["function"] for tool in tools)
    ]


@pytest.mark.parametrize("tools", [(), (WEATHER, CLOCK)], ids=["plain", "tools"])
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("effort", ["low", "high", "max"])
@pytest.mark.parametrize("name", TALKS)
def test_ids_are_official(encoding, official, name, effort, thinking, tools) -> None:
    conversation = recipe.Conversation(
        [official_message(message, thinking=thinking) for message in TALKS[name]],
        thinking_mode=thinking,
        tools=official_tools(tools),
        reasoning_effort=effort if thinking else None,
    )
    prompt = encoding.render(TALKS[name], tools=tools, thinking=thinking, effort=effort)
    assert prompt.ids == official.encode(conversation)


def text_of(
    tokenizer: Tokenizer, messages: Sequence[Any], release: str = "0731", **how: Any
) -> str:
    return tokenizer.decode(ChatEncoding(tokenizer, release).render(messages, **how).ids)


CALLS = """Let me look.

<｜DSML｜tool_calls>
<｜DSML｜invoke name="weather">
<｜DSML｜parameter name="z" string="true">北京</｜DSML｜parameter>
<｜DSML｜parameter name="a" string="false">3</｜DSML｜parameter>
</｜DSML｜invoke>
<｜DSML｜invoke name="weather">
<｜DSML｜parameter name="a" string="false">[1, {"y": 2, "x": null}]</｜DSML｜parameter>
<｜DSML｜parameter name="z" string="true">ls 2>&1 <</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜tool_calls>"""
AGENT_TURNS = (
    f"{USER}weather in 北京 and Zürich?{ASSISTANT}<think>two places</think>{CALLS}{EOS}"
    f"{USER}<tool_result>sun ☀️</tool_result>\n\n<tool_result>rain</tool_result>"
    f"{ASSISTANT}<think>and the time</think>\n\n<｜DSML｜tool_calls>\n"
    f'<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>{EOS}'
    f"{USER}<tool_result>12:30</tool_result>"
    f"{ASSISTANT}<think>done</think>Sun in 北京, rain in Zürich.{EOS}"
    f"{USER}Thanks. 1234567 and 12.5{ASSISTANT}<think>"
)


@pytest.mark.parametrize(
    ("messages", "thinking", "expected"),
    [
        ([user("Hi")], True, f"{BOS}{USER}Hi{ASSISTANT}<think>"),
        ([user("Hi")], False, f"{BOS}{USER}Hi{ASSISTANT}</think>"),
        ([system("S"), user("Hi")], True, f"{BOS}S{USER}Hi{ASSISTANT}<think>"),
        (
            [{"role": "developer", "content": "S"}, user("Hi")],
            True,
            f"{BOS}S{USER}Hi{ASSISTANT}<think>",
        ),
        (
            [user("a"), assistant("b", "why"), user("c")],
            True,
            f"{BOS}{USER}a{ASSISTANT}</think>b{EOS}{USER}c{ASSISTANT}<think>",
        ),
        (
            [user("a"), assistant("b", "why"), user("c")],
            False,
            f"{BOS}{USER}a{ASSISTANT}</think>b{EOS}{USER}c{ASSISTANT}</think>",
        ),
        (
            [user("a"), assistant("b", "why") | {"prefix": True}],
            True,
            f"{BOS}{USER}a{ASSISTANT}<think>why</think>b",
        ),
    ],
)
def test_texts_worked_by_hand(tokenizer: Tokenizer, messages, thinking, expected: str) -> None:
    assert text_of(tokenizer, messages, thinking=thinking) == expected


def test_tools_keep_reasoning_the_order_of_calls_and_the_keys_of_json(tokenizer: Tokenizer) -> None:
    text = text_of(tokenizer, AGENT, tools=[WEATHER, CLOCK])
    assert text.endswith(AGENT_TURNS)
    assert text.startswith(f"{BOS}Be brief.\n\n## Tools\n")
    schema = '"parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {}}}}\n'
    assert f'{{"name": "weather", "description": "天气 of a place", {schema}' in text


def test_a_required_call_is_opened(tokenizer: Tokenizer) -> None:
    how = {"tools": [CLOCK], "thinking": False, "tool_choice": "required"}
    expected = f"{USER}Hi{ASSISTANT}</think>\n\n<｜DSML｜tool_calls>\n"
    assert text_of(tokenizer, [user("Hi")], **how).endswith(expected)


def test_tools_that_may_not_be_called_are_not_mentioned(tokenizer: Tokenizer) -> None:
    plain = f"{BOS}{USER}Hi{ASSISTANT}<think>"
    assert text_of(tokenizer, [user("Hi")], tools=[CLOCK], tool_choice="none") == plain


ABSOLUTE = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
BEYOND = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"


@pytest.mark.parametrize(
    ("release", "effort", "begins"),
    [
        ("0731", None, None),
        ("0731", "low", None),
        ("0731", "high", ABSOLUTE),
        ("0731", "max", BEYOND),
        ("preview", None, None),
        ("preview", "low", None),
        ("preview", "high", None),
        ("preview", "max", ABSOLUTE),
    ],
)
def test_effort_is_in_words_of_the_release(tokenizer: Tokenizer, release, effort, begins) -> None:
    messages = [system("S"), user("Hi")]
    text = text_of(tokenizer, messages, release, effort=effort)
    rest = f"S{USER}Hi{ASSISTANT}<think>"
    assert text.startswith(BOS + (begins or rest))
    assert text.endswith(rest)
    silent = text_of(tokenizer, messages, release, effort=effort, thinking=False)
    assert silent == f"{BOS}S{USER}Hi{ASSISTANT}</think>"


def test_the_same_words_serve_both_releases(tokenizer: Tokenizer) -> None:
    preview = text_of(tokenizer, [user("Hi")], "preview", effort="max")
    assert preview == text_of(tokenizer, [user("Hi")], "0731", effort="high")


def test_user_text_makes_no_control_token(tokenizer: Tokenizer, encoding: ChatEncoding) -> None:
    ids = encoding.render([user(SPELLINGS)]).ids
    control = [BOS, USER, ASSISTANT, "<think>"]
    assert [i for i in ids if i >= 128000 or i < 3] == [tokenizer.id_of(t) for t in control]
    assert SPELLINGS in tokenizer.decode(ids)


def turn_texts(tokenizer: Tokenizer, prompt: Any) -> list[tuple[str, bool]]:
    return [(tokenizer.decode(prompt.ids[t.start : t.end]), t.thinks) for t in prompt.turns]


def test_turns_are_where_they_say(tokenizer: Tokenizer, encoding: ChatEncoding) -> None:
    prompt = encoding.render(AGENT, tools=[WEATHER, CLOCK])
    texts = turn_texts(tokenizer, prompt)
    assert texts[0] == ("two places</think>" + CALLS, True)
    assert texts[1][0].startswith("and the time</think>\n\n<｜DSML｜tool_calls>")
    assert texts[2] == ("done</think>Sun in 北京, rain in Zürich.", True)
    assert [turn.message for turn in prompt.turns] == [AGENT[2], AGENT[5], AGENT[7]]
    assert {prompt.ids[turn.end] for turn in prompt.turns} == {tokenizer.eos_id}
    assert prompt.answer == len(prompt.ids)
    before_users = tokenizer.decode(prompt.ids[: prompt.system_end])
    assert before_users == text_of(tokenizer, AGENT, tools=[WEATHER, CLOCK]).split(USER)[0]


def test_turns_without_their_reasoning(tokenizer: Tokenizer, encoding: ChatEncoding) -> None:
    prompt = encoding.render(TALKS["turns"])
    assert turn_texts(tokenizer, prompt) == [("b", False), ("d", False)]
    assert prompt.system_end == 1


def test_spelled_tokens_move_no_turn(tokenizer: Tokenizer, encoding: ChatEncoding) -> None:
    prompt = encoding.render(TALKS["spelled"])
    assert turn_texts(tokenizer, prompt) == [(SPELLINGS, False)]


def test_where_the_answer_begins(tokenizer: Tokenizer, encoding: ChatEncoding) -> None:
    how = {"tools": [CLOCK], "thinking": False, "tool_choice": "required"}
    prompt = encoding.render([user("Hi")], **how)
    assert tokenizer.decode(prompt.ids[prompt.answer :]) == "\n\n<｜DSML｜tool_calls>\n"
    continued = encoding.render([user("a"), assistant("b") | {"prefix": True}])
    assert (continued.answer, continued.turns) == (None, [])


def dict_call(arguments: Any) -> dict[str, Any]:
    return call("j", "clock", arguments)


CLOCK_CALL = call("i", "clock", "{}")
CALLING = assistant("", None, call("i", "clock", "{}"))


@pytest.mark.parametrize(
    ("messages", "how", "error"),
    [
        ([], {}, "messages must hold at least one message; got none"),
        (None, {}, "messages must be a list of mappings; got None"),
        ("Hi", {}, "messages must be a list of mappings; got 'Hi'"),
        (["Hi"], {}, r"messages\[0\] must be a mapping with role and content; got 'Hi'"),
        ([{"role": "robot", "content": "Hi"}], {}, r"messages\[0\]: unknown variant `robot`"),
        ([user("a"), {"content": "Hi"}], {}, r"messages\[1\]: missing field `role`"),
        ([user("a"), {"role": "user"}], {}, r"messages\[1\]: missing field `content`"),
        (
            [CALLING, result("i", "x"), user(3)],
            {},
            r"messages\[2\]: content should be a string or a list",
        ),
        ([user("a"), user(object())], {}, r"messages\[1\]: object is not a JSON value"),
        ([user("a"), user("\ud800")], {}, r"messages\[1\]: .*surrogates not allowed"),
        ([user("a"), result("i", "x")], {}, "must be a response to a preceding message"),
        ([user("a"), CALLING], {}, "must be followed by tool messages"),
        ([user("a"), CALLING, result("j", "x")], {}, "did not have response messages"),
        ([user("a")], {"effort": "x"}, "effort must be low, high, max or None; got 'x'"),
        ([user("a")], {"effort": ["low"]}, r"effort must be low, .*; got \['low'\]"),
        (
            [user("a")],
            {"tools": [CLOCK], "tool_choice": "required"},
            "tool_choice must be auto or none while the model thinks; got 'required': ask with "
            "thinking=False",
        ),
        (
            [user("a"), assistant("", None, CLOCK_CALL, dict_call({"t": 1})), result("i", "x")],
            {},
            r"messages\[1\]\.tool_calls\[1\]\.function\.arguments must be a JSON string, as "
            r"json\.dumps gives it; got {'t': 1}",
        ),
        ([user("a"), assistant("", None, {"id": "i"})], {}, r"messages\[1\]: missing field `type`"),
        # Which of several messages is out of order, they say together.
        ([user("a"), CALLING, result("i", "x"), CALLING], {}, "^An assistant message with"),
        (
            [user("a"), CALLING, result("i", "x"), result("i", "x")],
            {},
            "^Messages with role 'tool'",
        ),
        ([user("a")], {"tools": [CLOCK], "tool_choice": "some"}, "`none`, `auto`, `required`"),
        (
            [user("a")],
            {"thinking": False, "tool_choice": "required"},
            "tool_choice must be auto or none without tools; got 'required'",
        ),
        ([user("a")], {"tool_choice": ["none"]}, r"auto or none without tools; got \['none'\]"),
        (
            [user("a")],
            {"tools": ["f"]},
            r"tools\[0\] must be a mapping with type and function; got 'f'",
        ),
        ([user("a")], {"tools": CLOCK}, "tools must be a list of mappings; got {"),
        ([user("a")], {"tools": [CLOCK, {"type": "function"}]}, r"tools\[1\]: missing field"),
    ],
)
def test_what_cannot_be_rendered_is_refused(encoding: ChatEncoding, messages, how, error) -> None:
    with pytest.raises(ChatError, match=error):
        encoding.render(messages, **how)
