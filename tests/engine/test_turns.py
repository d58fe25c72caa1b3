"""Answers keep the tokens that they were sampled as, wherever their message comes back."""

import json
from collections import OrderedDict
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from chats import TOOL, answered, calls_text, odd_tokens, user
from mlx_dsv4.engine.turns import Turns
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.text import ChatEncoding, Tokenizer
from tiny_models import tiny_model

TOOLS = {"tools": [TOOL]}
PLAIN = {"thinking": False}
REQUIRED = {"tools": [TOOL], "thinking": False, "tool_choice": "required"}
ASK = [user("go")]
CALLED = f"why\n</think>\n\nLook. \n\n{calls_text('ls 2>&1')}"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with GGUFFile(tiny_model().path) as file:
        return Tokenizer.from_metadata(file.metadata)


@pytest.fixture
def turns(tokenizer: Tokenizer) -> Turns:
    return Turns(tokenizer.find("</think>"), tokenizer.find("｜DSML｜"))


def rest_of(tokenizer: Tokenizer, content: str, *, thinking: bool = True) -> list[int]:
    """The end of an answer, a user's turn, and the beginning of the next answer."""
    begin = [
        tokenizer.id_of("<｜Assistant｜>"),
        tokenizer.id_of(f"<{'' if thinking else '/'}think>"),
    ]
    user_ids = [tokenizer.id_of("<｜User｜>"), *tokenizer.encode(content)]
    return [tokenizer.eos_id, *user_ids, *begin]


def tool_result(message: dict[str, Any], content: str = "ok") -> dict[str, Any]:
    call_id = message["tool_calls"][0]["id"]
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def next_turn(
    turns: Turns, tokenizer: Tokenizer, *messages: dict[str, Any], **how: Any
) -> tuple[list[int], list[int]]:
    """The ids of a prompt with sampled turns, and as it is rendered."""
    prompt = ChatEncoding(tokenizer).render([*ASK, *messages], **how)
    return turns.splice(prompt), prompt.ids


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("Hé 中😀, the token.", PLAIN),
        (" \n the token \n\n", PLAIN),
        ("the row</think>the token", TOOLS),
        ("\n\nwhy \n</think>\n\n So. \n", TOOLS),
        ("</think>the token", TOOLS),
        ("the row</think>", TOOLS),
    ],
)
def test_an_answer_comes_back_as_it_was_sampled(
    turns: Turns, tokenizer: Tokenizer, text: str, how: dict[str, Any]
) -> None:
    tokens = odd_tokens(tokenizer, text)
    result, prompt = answered(tokenizer, ASK, tokens, **how)
    turns.remember(result, prompt)
    spliced, rendered = next_turn(turns, tokenizer, result.message, user("on"), **how)
    thinking = how.get("thinking", True)
    assert spliced == [*prompt.ids, *tokens, *rest_of(tokenizer, "on", thinking=thinking)]
    assert spliced != rendered


def with_calls(message: dict[str, Any], arguments: str) -> dict[str, Any]:
    (call,) = message["tool_calls"]
    function = call["function"] | {"arguments": arguments}
    return message | {"tool_calls": [call | {"function": function}]}


@pytest.mark.parametrize(
    "respell",
    [
        lambda m: m,
        lambda m: with_calls(m, '{"n": [ 1, 2 ], "cmd": "ls 2>&1"}'),
        lambda m: with_calls(m, '{"cmd":"ls 2\\u003e&1","n":[1,2]}'),
        lambda m: {k: v for k, v in m.items() if k != "reasoning_content"},
        lambda m: m | {"reasoning_content": None},
        lambda m: json.loads(json.dumps(m, sort_keys=True)),
    ],
    ids=["as it was", "keys and spaces", "escapes", "no reasoning", "null reasoning", "keys"],
)
def test_calls_come_back_as_they_were_sampled(turns: Turns, tokenizer: Tokenizer, respell) -> None:
    tokens = odd_tokens(tokenizer, CALLED)
    result, prompt = answered(tokenizer, ASK, tokens, **TOOLS)
    turns.remember(result, prompt)
    message = respell(result.message)
    spliced, _ = next_turn(turns, tokenizer, message, tool_result(message), **TOOLS)
    answer_end = rest_of(tokenizer, "<tool_result>ok</tool_result>")
    assert spliced == [*prompt.ids, *tokens, *answer_end]


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: with_calls(m, '{"cmd": "ls", "n": [1, 2]}'),
        lambda m: with_calls(m, '{"cmd": "ls 2>&1", "n": [1, 2], "x": 0}'),
        lambda m: with_calls(m, "ls 2>&1"),
        lambda m: m | {"content": "Look!"},
        lambda m: m | {"content": [{"type": "text", "text": m["content"]}]},
        lambda m: m | {"reasoning_content": "why not"},
        lambda m: m | {"tool_calls": [m["tool_calls"][0] | {"id": "other"}]},
    ],
    ids=["value", "key", "no JSON", "content", "parts", "reasoning", "id"],
)
def test_edited_calls_are_rendered(turns: Turns, tokenizer: Tokenizer, edit) -> None:
    result, prompt = answered(tokenizer, ASK, odd_tokens(tokenizer, CALLED), **TOOLS)
    turns.remember(result, prompt)
    message = edit(result.message)
    spliced, rendered = next_turn(turns, tokenizer, message, tool_result(message), **TOOLS)
    assert spliced == rendered


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m | {"content": "So!"},
        lambda m: m | {"content": m["content"].strip()},
        lambda m: m | {"reasoning_content": "why not"},
        lambda m: {k: v for k, v in m.items() if k != "reasoning_content"},
    ],
    ids=["content", "white space", "reasoning", "no reasoning"],
)
def test_an_edited_answer_is_rendered(turns: Turns, tokenizer: Tokenizer, edit) -> None:
    """Without calls nothing but its parts tells which answer a message was."""
    tokens = odd_tokens(tokenizer, "why</think>So. ")
    result, prompt = answered(tokenizer, ASK, tokens, **TOOLS)
    turns.remember(result, prompt)
    message = edit(result.message)
    spliced, rendered = next_turn(turns, tokenizer, message, user("on"), **TOOLS)
    assert spliced == rendered


def test_reasoning_that_is_dropped_takes_its_tokens_along(
    turns: Turns, tokenizer: Tokenizer
) -> None:
    tokens = odd_tokens(tokenizer, "why</think>\nSo.")
    result, prompt = answered(tokenizer, ASK, tokens)
    turns.remember(result, prompt)
    spliced, _ = next_turn(turns, tokenizer, result.message, user("on"))
    answer = odd_tokens(tokenizer, "</think>\nSo.")  # without tools, the rule of the model
    assert spliced == [*prompt.ids[:-1], *answer, *rest_of(tokenizer, "on")]


def test_an_answer_without_reasoning_is_rendered_where_the_turn_thinks(
    turns: Turns, tokenizer: Tokenizer
) -> None:
    result, prompt = answered(tokenizer, ASK, odd_tokens(tokenizer, "So."), **PLAIN)
    turns.remember(result, prompt)
    spliced, rendered = next_turn(turns, tokenizer, result.message, user("on"), **TOOLS)
    assert spliced == rendered


def test_a_required_call_keeps_the_marker_that_its_prompt_opened(
    turns: Turns, tokenizer: Tokenizer
) -> None:
    block = calls_text("ls")
    tokens = odd_tokens(tokenizer, block.removeprefix("<｜DSML｜tool_calls>\n"))
    result, prompt = answered(tokenizer, ASK, tokens, **REQUIRED)
    assert tokenizer.decode(prompt.ids).endswith("</think>\n\n<｜DSML｜tool_calls>\n")
    turns.remember(result, prompt)
    message = result.message
    spliced, _ = next_turn(
        turns, tokenizer, message, tool_result(message), tools=[TOOL], thinking=False
    )
    answer_end = rest_of(tokenizer, "<tool_result>ok</tool_result>", thinking=False)
    assert spliced == [*prompt.ids, *tokens, *answer_end]


@pytest.mark.parametrize("text", ["why", "why</thi"])
def test_an_answer_cut_in_its_reasoning_is_rendered(
    turns: Turns, tokenizer: Tokenizer, text: str
) -> None:
    """Its tokens have no end of reasoning, which its turn must have."""
    result, prompt = answered(tokenizer, ASK, odd_tokens(tokenizer, text), cut=True, **TOOLS)
    turns.remember(result, prompt)
    spliced, rendered = next_turn(turns, tokenizer, result.message, user("on"), **TOOLS)
    assert spliced == rendered


def test_an_end_of_reasoning_in_other_tokens_is_rendered(
    turns: Turns, tokenizer: Tokenizer
) -> None:
    """Where the answer begins in the tokens is not known; it must not be left out."""
    spelled = odd_tokens(tokenizer, "why</") + odd_tokens(tokenizer, "think>So.")
    result, prompt = answered(tokenizer, ASK, spelled)
    assert (result.reasoning, result.text) == ("why", "So.")
    turns.remember(result, prompt)
    spliced, rendered = next_turn(turns, tokenizer, result.message, user("on"))
    assert spliced == rendered


@pytest.mark.parametrize("end", [-1, -30, -8, 20])
def test_an_answer_cut_in_a_call_is_rendered(turns: Turns, tokenizer: Tokenizer, end: int) -> None:
    text = f"Look.\n\n{calls_text('ls')}"[:end]
    result, prompt = answered(
        tokenizer, ASK, odd_tokens(tokenizer, text), cut=True, tools=[TOOL], thinking=False
    )
    turns.remember(result, prompt)
    message = result.message
    follows = tool_result(message) if "tool_calls" in message else user("on")
    spliced, rendered = next_turn(turns, tokenizer, message, follows, tools=[TOOL], thinking=False)
    assert spliced == rendered


def test_an_answer_that_is_cut_short_comes_back_whole(turns: Turns, tokenizer: Tokenizer) -> None:
    tokens = odd_tokens(tokenizer, "one two")
    result, prompt = answered(tokenizer, ASK, tokens, cut=True, **PLAIN)
    turns.remember(result, prompt)
    spliced, _ = next_turn(turns, tokenizer, result.message, user("on"), **PLAIN)
    assert spliced == [*prompt.ids, *tokens, *rest_of(tokenizer, "on", thinking=False)]


def test_the_token_that_ended_an_answer_is_not_part_of_it(
    turns: Turns, tokenizer: Tokenizer
) -> None:
    tokens = odd_tokens(tokenizer, "So.")
    result, prompt = answered(tokenizer, ASK, [*tokens, tokenizer.id_of("<｜User｜>")], **PLAIN)
    result = replace(result, tokens=result.tokens[:-1])
    turns.remember(result, prompt)
    spliced, _ = next_turn(turns, tokenizer, result.message, user("on"), **PLAIN)
    assert spliced == [*prompt.ids, *tokens, *rest_of(tokenizer, "on", thinking=False)]


def test_the_rest_of_a_message_is_not_the_message(turns: Turns, tokenizer: Tokenizer) -> None:
    begun = [*ASK, {"role": "assistant", "content": "Once ", "prefix": True}]
    result, prompt = answered(tokenizer, begun, odd_tokens(tokenizer, "upon"), **PLAIN)
    turns.remember(result, prompt)
    whole = {"role": "assistant", "content": "Once upon"}
    for message in (whole, result.message):
        spliced, rendered = next_turn(turns, tokenizer, message, user("on"), **PLAIN)
        assert spliced == rendered


def test_equal_messages_have_the_tokens_of_the_last(turns: Turns, tokenizer: Tokenizer) -> None:
    for tokens in (odd_tokens(tokenizer, "for row"), tokenizer.encode("for row")):
        result, prompt = answered(tokenizer, ASK, tokens, **PLAIN)
        turns.remember(result, prompt)
    spliced, rendered = next_turn(turns, tokenizer, result.message, user("on"), **PLAIN)
    assert spliced == rendered


def test_the_least_recently_used_are_forgotten(
    turns: Turns, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_dsv4.engine.turns.ENTRY_BYTES", 0)
    monkeypatch.setattr("mlx_dsv4.engine.turns.MOST_BYTES", 4 * 14)
    messages = {}

    def remember(text: str) -> None:
        result, prompt = answered(tokenizer, ASK, odd_tokens(tokenizer, text), **PLAIN)
        messages[text] = result.message
        turns.remember(result, prompt)

    def known(text: str) -> bool:
        spliced, rendered = next_turn(turns, tokenizer, messages[text], user("on"), **PLAIN)
        return spliced != rendered

    for text in ("the a", "the b"):
        remember(text)
    remember("the b")  # a second time, which costs nothing
    assert known("the a")  # and is now the one used last
    remember("the c")
    assert [known(text) for text in ("the a", "the b", "the c")] == [True, False, True]
    remember("for the row of it")  # alone more than may be kept
    assert not any(map(known, messages))
    remember("the d")
    assert known("the d")


def test_short_answers_take_room_too(
    turns: Turns, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_dsv4.engine.turns.MOST_BYTES", 3 * 1040)
    for text in ("", "a", "b", "c", "d"):
        result, prompt = answered(tokenizer, ASK, tokenizer.encode(text), **PLAIN)
        turns.remember(result, prompt)
    messages = [{"role": "assistant", "content": text} for text in ("", "a", "b", "c", "d")]
    assert [len(turns.records([message])) for message in messages] == [0, 0, 1, 1, 1]


def test_threads_do_not_meet_in_it(
    turns: Turns, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is rendered while the answer of another one ends and takes its place."""
    monkeypatch.setattr("mlx_dsv4.engine.turns.ENTRY_BYTES", 0)
    monkeypatch.setattr("mlx_dsv4.engine.turns.MOST_BYTES", 4 * 6)
    first, prompt = answered(tokenizer, ASK, odd_tokens(tokenizer, "the a"), **PLAIN)
    second, _ = answered(tokenizer, ASK, odd_tokens(tokenizer, "the b"), **PLAIN)
    turns.remember(first, prompt)
    threads = []

    class Interrupted(OrderedDict):
        def get(self, key: str) -> object:
            found = super().get(key)
            threads.append(Thread(target=turns.remember, args=(second, prompt)))
            threads[-1].start()
            threads[-1].join(0.2)
            return found

    turns._known = Interrupted(turns._known)
    spliced, rendered = next_turn(turns, tokenizer, first.message, user("on"), **PLAIN)
    threads[0].join()
    assert spliced != rendered


def test_arguments_that_nest_too_deeply_are_rendered(turns: Turns, tokenizer: Tokenizer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "run", "arguments": "[" * 5000}}
    result = {"role": "tool", "tool_call_id": "1", "content": "ok"}
    messages = [user("go"), {"role": "assistant", "content": "", "tool_calls": [call]}, result]
    prompt = ChatEncoding(tokenizer).render(messages, **TOOLS)
    assert turns.splice(prompt) == prompt.ids
