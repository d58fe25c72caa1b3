"""An agent with tools that thinks, ten turns in one session: each turn reads what came since."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from chats import TOOL, calls_text, odd_tokens, user
from cold import check_cold, load, script
from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Result, Text, ToolCallDelta
from mlx_dsv4.engine.turns import Turns

SYSTEM = {"role": "system", "content": "You run commands."}
# What the model says in each turn: reasoning, text and calls, with white space that parsing drops.
TURNS = [
    f"\nlist the rows first\n</think>\n\nI look. \n\n{calls_text('ls 2>&1')}",
    f"two at once</think>\n\n{calls_text('cat rows', 'wc -l rows')}",
    "there are four</think>There are four streams.\n",
    f"</think>The token.\n\n{calls_text('echo 中😀')}",
    "it is there</think>\n\nOne row for the tokens.",
    f"and the window</think>{calls_text('window')}",
    f"again the window\n\n</think>{calls_text('window')}",
    "</think>The window keeps the rows.",
    f"the last one</think>Last.\n\n{calls_text('rm rows')}",
    "all is done</think>Done with all of the rows.",
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with load(context=4096) as engine:
        yield engine


def since(message: dict[str, Any], turn: int) -> list[dict[str, Any]]:
    """The messages that follow an answer: results of its calls, the last one first, or a user."""
    calls = message.get("tool_calls", [])
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": f"the row {turn}.{i}"}
        for i, call in enumerate(calls)
    ]
    return results[::-1] or [user(f"and token {turn}?")]


def since_tokens(engine: Engine, n_calls: int, turn: int) -> list[int]:
    """The same as tokens, after the end of the answer and up to where the next one begins."""
    results = [f"<tool_result>the row {turn}.{i}</tool_result>" for i in range(n_calls)]
    id_of, encode = engine.tokenizer.id_of, engine.tokenizer.encode
    text = "\n\n".join(results) or f"and token {turn}?"
    begin = [id_of("<｜Assistant｜>"), id_of("<think>")]
    return [engine.tokenizer.eos_id, id_of("<｜User｜>"), *encode(text), *begin]


def transcript(engine: Engine, texts: list[str]) -> list[Result]:
    """The results of turns with these texts."""
    messages, results = [SYSTEM, user("for each row, what is the token?")], []
    with engine.session() as session:
        for turn, text in enumerate(texts):
            tokens = [*odd_tokens(engine.tokenizer, text), engine.tokenizer.eos_id]
            params = Params(
                temperature=0,
                logprobs=2,
                allowed_tokens=script(tokens, engine.config.vocab),
            )
            results.append(session.chat(messages, params, tools=[TOOL]))
            assert list(results[-1].tokens) == tokens
            message = results[-1].message
            messages += [message, *since(message, turn)]
    return results


@pytest.fixture(scope="module")
def results(engine: Engine) -> list[Result]:
    return transcript(engine, TURNS)


def test_the_answers_have_the_parts_of_their_texts(results: list[Result]) -> None:
    assert [result.reasoning for result in results] == [
        "list the rows first",
        "two at once",
        "there are four",
        "",
        "it is there",
        "and the window",
        "again the window",
        "",
        "the last one",
        "all is done",
    ]
    assert [len(result.tool_calls) for result in results] == [1, 2, 0, 1, 0, 1, 1, 0, 1, 0]
    assert results[3].tool_calls[0].arguments == '{"cmd": "echo 中😀", "n": [1,2]}'
    assert results[8].text == "Last."


def test_each_turn_reads_the_messages_since_alone(engine: Engine, results: list[Result]) -> None:
    assert results[0].usage.cached_tokens == 0
    for turn, (before, result) in enumerate(pairwise(results)):
        held = [*before.prompt, *before.tokens[:-1]]  # the token that ended it was not read
        read = since_tokens(engine, len(before.tool_calls), turn)
        assert list(result.prompt) == held + read
        assert result.reuse is not None
        assert (result.reuse.kind, result.reuse.diverged_at) == ("live", None)
        assert result.usage.cached_tokens == len(held)
        assert result.usage.prompt_tokens == len(held) + len(read)


def test_rendered_again_each_turn_reads_the_answer_once_more(
    engine: Engine, results: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the remembered tokens save: the answer diverges in its first piece that is odd."""
    monkeypatch.setattr(Turns, "splice", lambda _, prompt: prompt.ids)
    rendered = transcript(engine, TURNS[:5])
    for before, result in pairwise(rendered):
        assert result.reuse is not None
        assert result.reuse.kind == "anchor"
        # Anchors are kept eight tokens before a prompt's end.
        assert result.usage.cached_tokens == len(before.prompt) - 8

    def computed(results: list[Result]) -> int:
        return sum(r.usage.prompt_tokens - r.usage.cached_tokens for r in results[1:])

    assert computed(results[:5]) < computed(rendered) / 3


def test_the_last_turn_is_what_a_cold_generation_gives(
    engine: Engine, results: list[Result]
) -> None:
    last = results[-1]
    params = Params(
        temperature=0, logprobs=2, allowed_tokens=script(last.tokens, engine.config.vocab)
    )
    with load(context=4096, slots=1) as other:
        cold = other.generate(last.prompt, params)
    assert cold.usage.cached_tokens == 0
    assert cold.logprobs == last.logprobs


def test_a_turn_drawn_freely_is_what_a_cold_generation_gives(engine: Engine) -> None:
    never = dict.fromkeys(engine.tokenizer.stop_ids, -1e3)
    free = Params(max_tokens=40, temperature=0.7, seed=5, logit_bias=never)
    tokens = [*odd_tokens(engine.tokenizer, TURNS[2]), engine.tokenizer.eos_id]
    scripted = Params(allowed_tokens=script(tokens, engine.config.vocab))
    messages = [SYSTEM, user("what is the token?")]
    with engine.session() as session:
        first = session.chat(messages, scripted, tools=[TOOL])
        messages += [first.message, user("go on")]
        result = session.chat(messages, free, tools=[TOOL])
    assert result.reuse is not None
    assert result.reuse.kind == "live"
    assert len(set(result.tokens)) > 10
    check_cold(engine, result, free)


def test_a_call_that_cannot_be_parsed_reaches_the_caller_as_text(engine: Engine) -> None:
    begun = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke nome="
    tokens = [*odd_tokens(engine.tokenizer, f"I look.{begun}"), engine.tokenizer.eos_id]
    params = Params(allowed_tokens=script(tokens, engine.config.vocab))
    how: dict[str, Any] = {"tools": [TOOL], "thinking": False}
    *events, done = engine.stream_chat([user("look")], params, **how)
    assert "".join(e.text for e in events if isinstance(e, Text)) == f"I look.{begun}"
    assert not any(isinstance(e, ToolCallDelta) for e in events)
    result = done.result
    assert (result.text, result.tool_calls, result.finish_reason) == (f"I look.{begun}", (), "stop")
    # The answer is a message that can be sent again, as it was sampled.
    again = engine.chat([user("look"), result.message, user("well?")], Params(max_tokens=1), **how)
    assert again.prompt[: len(result.prompt) + len(tokens)] == (*result.prompt, *tokens)
