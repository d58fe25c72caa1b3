"""Generated text to reasoning, answer and tool calls: expected parts are typed by hand, and the
same wherever the text is cut."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from mlx_dsv4.engine.events import Reasoning, Text, ToolCall, ToolCallDelta
from mlx_dsv4.engine.output import ChatOutput, Ending
from mlx_dsv4.text import ChatEncoding, ChatPrompt, Tokenizer
from mlx_dsv4.text.tokenizer import BYTE_ALPHABET

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
ASK = [{"role": "user", "content": "x"}]
PROMPTS: dict[str, dict[str, Any]] = {
    "plain": {"thinking": False},
    "thinking": {},
    "tools": {"tools": [TOOL], "thinking": False},
    "thinking tools": {"tools": [TOOL]},
    "required": {"tools": [TOOL], "thinking": False, "tool_choice": "required"},
    "none": {"tools": [TOOL], "thinking": False, "tool_choice": "none"},
}
OPEN, CLOSE = "<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"


def parameter(name: str, value: str, *, string: bool = True) -> str:
    kind = "true" if string else "false"
    return f'<｜DSML｜parameter name="{name}" string="{kind}">{value}</｜DSML｜parameter>\n'


def invoke(name: str, *parameters: str) -> str:
    return f'<｜DSML｜invoke name="{name}">\n{"".join(parameters)}</｜DSML｜invoke>\n'


SHELL = invoke("sh", parameter("cmd", "ls 2>&1"), parameter("n", "3", string=False))
SHELL_CALL = ("sh", '{"cmd": "ls 2>&1", "n": 3}')
CALLS = OPEN + SHELL + invoke("g", parameter("arguments", "x <")) + CLOSE
BOTH_CALLS = [SHELL_CALL, ("g", '{"arguments": "x <"}')]


@dataclass
class Answer:
    """The parts of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str = "stop"


CASES: dict[str, tuple[str, str, Answer]] = {
    "answer": ("plain", "Hé, 中😀 1 < 2 > 0 </b>", Answer("Hé, 中😀 1 < 2 > 0 </b>")),
    "reasoning, then answer": ("thinking", "why\nnot</think>So.", Answer("So.", "why\nnot")),
    "white space around the end of reasoning": (
        "thinking",
        "\nwhy \n</think>\n\n So. \n",
        Answer(" So. \n", "why "),
    ),
    "reasoning like a marker": ("thinking", "</thin </ think> <", Answer("", "</thin </ think> <")),
    "markers in an answer without tools": (
        "plain",
        f"a </｜DSML｜ b <｜DSML｜ c {CALLS}",
        Answer(f"a </｜DSML｜ b <｜DSML｜ c {CALLS}"),
    ),
    "markers where calls are forbidden": ("none", f"a\n\n{CALLS}", Answer(f"a\n\n{CALLS}")),
    "a closing marker in an answer with tools": (
        "tools",
        "a </｜DSML｜ b ｜DSML｜ <｜DSM",
        Answer("a </｜DSML｜ b ｜DSML｜ <｜DSM"),
    ),
    "two calls": ("tools", f"Look.\n\n{CALLS}", Answer("Look.", "", BOTH_CALLS, "tool_calls")),
    "reasoning, answer, calls": (
        "thinking tools",
        f"why</think>Look.\n\n{CALLS}",
        Answer("Look.", "why", BOTH_CALLS, "tool_calls"),
    ),
    "calls alone": ("tools", f"\n\n{CALLS}", Answer("", "", BOTH_CALLS, "tool_calls")),
    "other white space before calls stays": (
        "tools",
        f"a \n\n\n\t{CALLS}",
        Answer("a \n\n\n\t", "", BOTH_CALLS, "tool_calls"),
    ),
    "a call that the prompt opened": (
        "required",
        SHELL + CLOSE,
        Answer("", "", [SHELL_CALL], "tool_calls"),
    ),
    "parameters of every type": (
        "tools",
        OPEN
        + invoke(
            "f",
            *(
                parameter(name, value, string=False)
                for name, value in {
                    "o": '{"z": [1, 2.50], "a": {}}',
                    "n": "null",
                    "f": "-1e-7",
                    "s": '"<｜"',
                }.items()
            ),
        )
        + CLOSE,
        Answer(
            calls=[
                (
                    "f",
                    '{"o": {"z": [1, 2.50], "a": {}}, "n": null, "f": -1e-7, "s": "<｜"}',
                )
            ],
            finish="tool_calls",
        ),
    ),
    "strings are quoted": (
        "tools",
        OPEN + invoke("f", parameter("s", 'a "b" \\ \n\té😀</a><｜')) + CLOSE,
        Answer(calls=[("f", '{"s": "a \\"b\\" \\\\ \\n\\té😀</a><｜"}')], finish="tool_calls"),
    ),
    "no parameters": (
        "tools",
        OPEN + invoke("f") + CLOSE,
        Answer(calls=[("f", "{}")], finish="tool_calls"),
    ),
}  # fmt: skip
# What the recipe makes of answers that are not as the model was trained to write them.
RECIPE: dict[str, tuple[str, str, Answer]] = {
    "calls inside reasoning end it and are calls": (
        "thinking tools",
        f"why\n\n{CALLS}",
        Answer("", "why", BOTH_CALLS, "tool_calls"),
    ),
    "text after calls is lost": (
        "tools",
        f"a\n\n{CALLS} and more\n\n{OPEN}{SHELL}{CLOSE}",
        Answer("a", "", BOTH_CALLS, "tool_calls"),
    ),
    "text after calls inside reasoning is lost": (
        "thinking tools",
        f"why {CALLS} so</think>ok",
        Answer("", "why ", BOTH_CALLS, "tool_calls"),
    ),
    "text between calls is lost": (
        "tools",
        f"a\n\n{OPEN}junk{SHELL}junk{CLOSE}",
        Answer("a", "", [SHELL_CALL], "tool_calls"),
    ),
    "an end of reasoning in an answer is lost": (
        "thinking",
        "a </think> b </think> c <think> d",
        Answer(" b  c <think> d", "a "),
    ),
    "a parameter without a type makes broken JSON": (
        "tools",
        OPEN + SHELL.replace(' string="true"', "") + CLOSE,
        Answer("", "", [("sh", '{"cmd">ls: 3}')], "tool_calls"),
    ),
    "what is no JSON stays": (
        "tools",
        OPEN + invoke("f", parameter("n", "no json", string=False)) + CLOSE,
        Answer("", "", [("f", '{"n": no json}')], "tool_calls"),
    ),
}
# Beginnings of calls that no call comes of: what is written there is text.
UNCALLED: dict[str, tuple[str, str, Answer]] = {
    "a block without a call": (
        "tools",
        f"a\n\n{OPEN}junk{CLOSE} b",
        Answer(f"a\n\n{OPEN}junk{CLOSE} b"),
    ),
    "an opening marker alone": ("tools", "a <｜DSML｜ b", Answer("a <｜DSML｜ b")),
    "another marker": ("tools", "a <｜DSML｜tool_call> b", Answer("a <｜DSML｜tool_call> b")),
    "in the reasoning": (
        "thinking tools",
        f"why\n\n{OPEN}junk</think>ok",
        Answer(f"\n\n{OPEN}junk</think>ok", "why"),
    ),
    "after the reasoning": (
        "thinking tools",
        f"why\n</think>\n\n{OPEN}junk",
        Answer(f"\n\n{OPEN}junk", "why"),
    ),
    "in a block that the prompt opened": ("required", f"junk{CLOSE}", Answer(f"junk{CLOSE}")),
}
CUT_SHORT: dict[str, tuple[str, str, Answer]] = {
    "in reasoning": ("thinking", "why", Answer("", "why")),
    "in the end of reasoning": ("thinking", "why</thi", Answer("", "why</thi")),
    "in an answer": ("plain", "a\n\n<｜DSM", Answer("a\n\n<｜DSM")),
    "in white space": ("tools", "a\n\n", Answer("a\n\n")),
    "before the marker is whole": ("tools", "a\n\n<｜DSML", Answer("a\n\n<｜DSML")),
    "in the marker": ("tools", f"a\n\n{OPEN[:-3]}", Answer(f"a\n\n{OPEN[:-3]}")),
    "in the name": ("tools", f"{OPEN}{SHELL[:16]}", Answer(f"{OPEN}{SHELL[:16]}")),
    "in the name of a required call": ("required", SHELL[:16], Answer(SHELL[:16])),
    "after the name": ("tools", f"{OPEN}{SHELL[:24]}", Answer("", "", [("sh", "")])),
    "in a string": (
        "tools",
        f"{OPEN}{SHELL[: SHELL.index('1</')]}",
        Answer("", "", [("sh", '{"cmd": "ls 2>&')]),
    ),
    "in the end of a string": (
        "tools",
        f"{OPEN}{SHELL[: SHELL.index('</') + 2]}",
        Answer("", "", [("sh", '{"cmd": "ls 2>&1</')]),
    ),
    "between parameters": (
        "tools",
        f"{OPEN}{SHELL[: SHELL.index('</') + 24]}",
        Answer("", "", [("sh", '{"cmd": "ls 2>&1"')]),
    ),
    "after all calls": ("tools", CALLS, Answer("", "", BOTH_CALLS)),
}


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> dict[str, ChatPrompt]:
    encoding = ChatEncoding(tokenizer)
    return {name: encoding.render(ASK, **how) for name, how in PROMPTS.items()}


class TextTokens:
    """Stands in for a detokenizer, so that "tokens" can be any pieces of text."""

    def push(self, piece: str) -> str:
        return piece

    def flush(self) -> str:
        return ""


def answer_of(
    output: ChatOutput, tokens: Iterable[Any], ending: Ending
) -> tuple[Answer, list[Text | Reasoning | ToolCallDelta]]:
    """The parts that the events add up to, which the output says too; the events."""
    events = []
    for token in tokens:
        events += output.push(token)
        if output.stopped:
            break
    events += output.finish(ending)
    answer = Answer(finish=output.finish_reason(ending))
    ids = []
    for event in events:
        match event:
            case Text(text):
                answer.text += text
            case Reasoning(text):
                answer.reasoning += text
            case ToolCallDelta(index, call_id, name, arguments):
                if index == len(answer.calls):
                    assert call_id
                    assert name
                    answer.calls.append((name, arguments))
                    ids.append(call_id)
                else:
                    assert (call_id, name) == ("", "")
                    old = answer.calls[index]
                    answer.calls[index] = (old[0], old[1] + arguments)
    assert len(set(ids)) == len(ids)
    calls = [ToolCall(i, n, a) for i, (n, a) in zip(ids, answer.calls, strict=True)]
    assert (output.text, output.reasoning) == (answer.text, answer.reasoning)
    assert output.tool_calls == calls
    return answer, events


def cuts(text: str) -> Iterable[list[str]]:
    """The text whole, in two pieces cut anywhere, and in characters."""
    yield [text]
    yield from ([text[:at], text[at:]] for at in range(1, len(text)))
    yield list(text)


def check_every_cut(
    prompt: ChatPrompt, text: str, expected: Answer, ending: Ending = "stop", stop: Any = ()
) -> None:
    for pieces in cuts(text):
        output = ChatOutput(TextTokens(), prompt.parser(stop))  # type: ignore[arg-type]
        answer, events = answer_of(output, pieces, ending)
        assert answer == expected, pieces
        assert all(event != Text("") and event != Reasoning("") for event in events)


@pytest.mark.parametrize("name", CASES)
def test_every_cut_gives_the_parts_worked_by_hand(prompts, name: str) -> None:
    kind, text, expected = CASES[name]
    check_every_cut(prompts[kind], text, expected)


@pytest.mark.parametrize("name", RECIPE)
def test_the_recipe_decides_what_malformed_answers_mean(prompts, name: str) -> None:
    kind, text, expected = RECIPE[name]
    check_every_cut(prompts[kind], text, expected)


@pytest.mark.parametrize("name", UNCALLED)
def test_nothing_is_lost_where_no_call_comes_of_a_block(prompts, name: str) -> None:
    kind, text, expected = UNCALLED[name]
    check_every_cut(prompts[kind], text, expected)


def test_nothing_comes_after_a_stop_string(prompts) -> None:
    parser = prompts["tools"].parser(["stop"])
    pieces = [*parser.push(f"a stop {OPEN}junk{CLOSE}"), *parser.finish(length=False)]
    assert [piece.text for piece in pieces] == ["a "]


@pytest.mark.parametrize("name", CUT_SHORT)
def test_an_answer_that_is_cut_short_gives_all_it_has(prompts, name: str) -> None:
    kind, text, expected = CUT_SHORT[name]
    expected.finish = "length"
    check_every_cut(prompts[kind], text, expected, "length")


@pytest.mark.parametrize(
    ("kind", "text", "stop", "expected"),
    [
        ("plain", "hello stop more", ["stop"], Answer("hello ")),
        ("plain", "hello sto", ["stop"], Answer("hello sto")),
        ("plain", "xabcdy", ["abcd", "bc"], Answer("xa")),
        ("plain", "好。再", ["。"], Answer("好")),
        ("plain", "a</｜DSML｜b", ["</｜DSML"], Answer("a")),
        ("thinking", "stop</think>go stop on", ["stop"], Answer("go ", "stop")),
        ("thinking", "no stop", ["stop"], Answer("", "no stop")),
        ("thinking", "stop</think>go", ["stop", "</think>"], Answer("go", "stop")),
        (
            "tools",
            f"a\n\n{OPEN}{invoke('f', parameter('s', 'stop'))}{CLOSE}",
            ["stop"],
            Answer("a", "", [("f", '{"s": "stop"}')], "tool_calls"),
        ),
    ],
)
def test_stop_strings_end_the_answer_alone(prompts, kind, text, stop, expected) -> None:
    check_every_cut(prompts[kind], text, expected, stop=stop)


def test_stopped_is_known_with_the_piece_that_completes_the_string(prompts) -> None:
    output = ChatOutput(TextTokens(), prompts["plain"].parser(["stop"]))  # type: ignore[arg-type]
    assert [(list(output.push(p)), output.stopped) for p in ("a ", "st", "op b")] == [
        ([Text("a ")], False),
        ([], False),
        ([], True),
    ]
    assert (list(output.push("more")), list(output.finish("stop"))) == ([], [])


def test_a_cancelled_answer_says_so(prompts) -> None:
    output = ChatOutput(TextTokens(), prompts["tools"].parser())  # type: ignore[arg-type]
    answer, _ = answer_of(output, [CALLS], "cancelled")
    assert answer == Answer("", "", BOTH_CALLS, "cancelled")


def byte_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    return [tokenizer.id_of(BYTE_ALPHABET[byte]) for byte in text.encode()]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[0] != "none"])
def test_tokens_of_any_cut_give_the_same_parts(tokenizer: Tokenizer, prompts, name: str) -> None:
    """Markers as tokens of their own, and all of it as bytes, which cut characters."""
    kind, text, expected = CASES[name]
    for tokens in (tokenizer.encode(text, special=True), byte_tokens(tokenizer, text)):
        output = ChatOutput(tokenizer.stream(control=False), prompts[kind].parser())
        answer, events = answer_of(output, tokens, "stop")
        assert answer == expected
        assert not any("\ufffd" in getattr(event, "text", "") for event in events)


def test_a_character_that_is_never_complete_is_replaced(tokenizer: Tokenizer, prompts) -> None:
    tokens = byte_tokens(tokenizer, "why</think>é中")[:-1]
    output = ChatOutput(tokenizer.stream(), prompts["thinking"].parser())
    answer, _ = answer_of(output, tokens, "length")
    assert answer == Answer("é\ufffd", "why", finish="length")
