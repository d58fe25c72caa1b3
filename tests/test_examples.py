"""The examples run as they are called, and do what they show."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import ToolCall
from tiny_models import tiny_model

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(tiny_model().path) as engine:
        yield engine


def example(name: str) -> ModuleType:
    """An example, imported."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str) -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / f"examples/{name}.py"), *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# The server has options, and tests of its own.
PROGRAMS = sorted(set((ROOT / "examples").glob("*.py")) - set((ROOT / "examples").glob("openai_*")))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_an_example_says_how_it_is_called(path: Path) -> None:
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"usage: python examples/{path.name} MODEL.gguf ")


def test_streams_are_read_at_once() -> None:
    prompts = ["The first", "def f(x):", "One, two"]
    lines = run("async_clients", str(tiny_model().path), *prompts).splitlines()
    readers = [line[:3] for line in lines[:-3]]
    # Nobody waits for the end of another one.
    assert readers != sorted(readers)
    assert [line[:3] for line in lines[-3:]] == ["[0]", "[1]", "[2]"]
    assert all(re.search(r"(stop|length): \d+ tokens, ", line) for line in lines[-3:])


def is_book(book: dict[str, object]) -> bool:
    """Whether a value is of the example's schema, word by word."""
    title, pages = book["title"], book["pages"]
    return (
        book.keys() == {"title", "pages", "kind", "lent"}
        and isinstance(title, str)
        and len(title) <= 30
        and type(pages) is int
        and 1 <= pages <= 5000
        and book["kind"] in ("novel", "poems", "manual")
        and type(book["lent"]) is bool
    )


def test_a_grammar_leaves_nothing_but_json_of_the_schema(engine: Engine) -> None:
    assert is_book(json.loads(run("grammar", str(tiny_model().path), "A book: ")))
    grammar = example("grammar")
    hook = grammar.JsonOf(engine.tokenizer, engine.config.vocab, grammar.BOOK)
    for seed in range(12):  # one hook for all of them
        params = Params(max_tokens=400, seed=seed, temperature=1.5, allowed_tokens=hook)
        result = engine.generate("A book: ", params)
        assert result.finish_reason == "stop"
        assert is_book(json.loads(result.text)), result.text


def test_a_grammar_follows_two_generations_at_once(engine: Engine) -> None:
    grammar = example("grammar")
    hook = grammar.JsonOf(engine.tokenizer, engine.config.vocab, grammar.BOOK)
    streams = [
        engine.stream("A book: ", Params(max_tokens=400, seed=seed, allowed_tokens=hook))
        for seed in range(2)
    ]
    assert all(is_book(json.loads(stream.result().text)) for stream in streams)


def test_a_schema_that_is_none_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        example("grammar").JsonOf(engine.tokenizer, 1024, {"type": "nonsense"})


def test_the_loop_calls_the_tool_and_goes_on_to_an_answer(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = example("tools")
    call = (
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="multiply">\n'
        '<｜DSML｜parameter name="a" string="false">1234</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="false">5678</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
    )
    scripts = iter([call, "7006652<｜end▁of▁sentence｜>"])
    script: list[int] = []

    def next_of_the_script(generated: Sequence[int]) -> np.ndarray:
        if not generated:
            script[:] = engine.tokenizer.encode(next(scripts), special=True)
        return np.arange(engine.config.vocab) == script[len(generated)]

    with engine.session() as session:
        params = Params(allowed_tokens=next_of_the_script)
        messages = tools.answer(session, "What is 1234 times 5678?", params)
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert messages[2]["content"] == "7006652"
    assert messages[3]["content"] == "7006652"
    printed = capsys.readouterr().out
    assert json.loads(re.search(r"multiply\((.*)\) = 7006652", printed)[1]) == {
        "a": 1234,
        "b": 5678,
    }


def test_a_call_that_makes_no_sense_gets_an_error_as_its_result() -> None:
    result_of = example("tools").result_of
    for name, arguments in [("divide", "{}"), ("multiply", '{"a": 1}'), ("multiply", '{"a"')]:
        assert list(json.loads(result_of(ToolCall("1", name, arguments)))) == ["error"]


def test_the_loop_runs_with_a_model_that_calls_nothing() -> None:
    assert run("tools", str(tiny_model().path), "What is 2 times 3?")
