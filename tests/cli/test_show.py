"""What a generation looks like, and what Ctrl-C makes of it; the model says what a script says."""

import os
import signal
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from mlx_dsv4 import Engine, Params
from mlx_dsv4.cli.ctrl_c import ctrl_c_calls
from mlx_dsv4.cli.show import Printer
from mlx_dsv4.engine import Stream
from tiny_models import tiny_model

QUESTION = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(tiny_model().path, slots=1, warm_up=False) as engine:
        yield engine


def says(engine: Engine, text: str, *, thinking: bool = True) -> Stream:
    """An answer of given text, then the end of the turn."""
    before, marker, after = text.partition("</think>")
    tokenizer = engine.tokenizer
    script = tokenizer.encode(before)
    if marker:
        script += [tokenizer.id_of(marker), *tokenizer.encode(after)]
    script.append(tokenizer.eos_id)

    def allowed(tokens: Sequence[int]) -> np.ndarray:
        return np.arange(engine.config.vocab) == script[len(tokens)]

    return engine.stream_chat(QUESTION, Params(allowed_tokens=allowed), thinking=thinking)


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [
        (True, "\x1b[2mlet me see\x1b[0m\n\nYes, it is.\n"),
        (False, "Yes, it is.\n"),
    ],
)
def test_a_terminal_sees_reasoning_dimmed_and_others_the_answer(
    engine: Engine, capsys: pytest.CaptureFixture[str], *, terminal: bool, shown: str
) -> None:
    stream = says(engine, "let me see</think>Yes, it is.")
    result = Printer(terminal=terminal).show(stream, max_tokens=None)
    seen = capsys.readouterr()
    assert seen.out.replace("\x1b[0m\x1b[2m", "") == shown
    assert (result.reasoning, result.text) == ("let me see", "Yes, it is.")
    assert seen.err.endswith("ended by stop\n")


def test_answers_one_after_the_other_begin_alike(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = Printer(terminal=True)
    printer.show(says(engine, "thought"), max_tokens=None)
    printer.show(says(engine, "Yes.", thinking=False), max_tokens=None)
    assert capsys.readouterr().out.replace("\x1b[0m\x1b[2m", "") == "\x1b[2mthought\x1b[0m\nYes.\n"


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [
        (True, "a\ufffd[31mb\ufffd\ufffdc\td\nef\n"),
        (False, "a\x1b[31mb\x07\x9bc\td\r\nef\n"),
    ],
)
def test_what_a_model_writes_does_not_steer_a_terminal(
    engine: Engine, capsys: pytest.CaptureFixture[str], *, terminal: bool, shown: str
) -> None:
    stream = says(engine, "a\x1b[31mb\x07\x9bc\td\r\nef", thinking=False)
    Printer(terminal=terminal).show(stream, max_tokens=None)
    assert capsys.readouterr().out == shown


def test_ctrl_c_ends_a_generation_with_what_it_said(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    def allowed(tokens: Sequence[int]) -> None:
        if len(tokens) == 5:
            os.kill(os.getpid(), signal.SIGINT)

    params = Params(allowed_tokens=allowed, temperature=0, max_tokens=4000)
    result = Printer(terminal=False).show(engine.stream("x", params), max_tokens=4000)
    assert result.finish_reason == "cancelled"
    assert 5 <= len(result.tokens) < 4000
    seen = capsys.readouterr()
    assert seen.out == f"{result.text}\n"
    assert seen.err.endswith("ended by cancelled\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_interrupts() -> None:
    calls = []

    def twice() -> None:
        with ctrl_c_calls(lambda: calls.append(1)):
            signal.raise_signal(signal.SIGINT)
            assert calls == [1]
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_stays_ignored_where_it_is() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ctrl_c_calls(pytest.fail):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
