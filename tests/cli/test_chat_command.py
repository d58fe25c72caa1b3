"""``mlx-dsv4 chat`` as a script runs it, and as a person sees it on a terminal."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from terminal import CTRL_C, CTRL_D, Terminal
from tiny_models import tiny_model

COMMAND = [sys.executable, "-m", "mlx_dsv4", "chat"]
ESCAPE = "\x1b"
ENDED = r"ended by [^\r\n]*\r\n"
LONG_QUESTION = "the rows of a window " * 20
COUNTS = re.compile(r"(\d+) prompt tokens(?: \((\d+) cached: (\w+)\))?.*?(\d+) generated")


def command(*options: str) -> list[str]:
    return [*COMMAND, "--model", str(tiny_model().path), *options]


def talk(folder: Path, *lines: str, options: tuple[str, ...] = ()) -> "Talk":
    """A script's conversation, with answers of at most 40 tokens that a seed repeats."""
    done = subprocess.run(
        command("--max-tokens", "40", "--seed", "7", *options),
        input="".join(f"{line}\n" for line in lines),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Talk(done)


class Talk:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.answers, self.notes = done.returncode, done.stdout, done.stderr
        # Per answer: prompt tokens, cached ones, how they were, generated ones.
        self.counts = [
            (int(prompt), int(cached or 0), kind, int(generated))
            for prompt, cached, kind, generated in COUNTS.findall(self.notes)
        ]


def kept(file: Path) -> dict[str, object]:
    """The second line of what /save wrote."""
    return json.loads(file.read_text().splitlines()[1])


def test_a_script_gets_answers_on_stdout_and_all_else_on_stderr(tmp_path: Path) -> None:
    done = talk(tmp_path, "hello", "", "and now?", "/save talk", options=("--no-thinking",))
    assert done.code == 0, done.notes
    answers = [exchange["answer"]["content"] for exchange in kept(tmp_path / "talk")["exchanges"]]
    assert len(answers) == 2
    assert all(answers)
    assert done.answers == "".join(f"{answer}\n" for answer in answers)
    assert ESCAPE not in done.answers + done.notes
    assert len(done.counts) == 2
    assert done.notes.splitlines()[-1].startswith("saved to talk: 2 answers, ")


def test_a_script_gets_no_reasoning(tmp_path: Path) -> None:
    done = talk(tmp_path, "hello", "/save talk")
    (exchange,) = kept(tmp_path / "talk")["exchanges"]
    assert exchange["answer"]["reasoning_content"]
    assert done.answers == f"{exchange['answer']['content']}\n"


def test_a_line_that_ends_in_a_backslash_goes_on(tmp_path: Path) -> None:
    talk(tmp_path, "one\\", "two\\", "", "three\\\\", "/save talk", " /four", "/save talk")
    questions = [exchange["question"] for exchange in kept(tmp_path / "talk")["exchanges"]]
    assert questions == ["one\ntwo\n", "three\\\n/save talk", " /four"]


def test_the_options_are_part_of_what_is_kept(tmp_path: Path) -> None:
    options = ("--system", "Be brief.", "--effort", "max", "--release", "0731")
    talk(tmp_path, "hello", "/save talk", options=options)
    fields = kept(tmp_path / "talk")
    assert (fields["system"], fields["thinking"], fields["effort"]) == ("Be brief.", True, "max")


def test_a_system_text_and_effort_are_read_by_the_model(tmp_path: Path) -> None:
    bare, system, effort = (
        talk(tmp_path, "hello", options=options).counts[0][0]
        for options in ((), ("--system", "Be brief."), ("--effort", "max"))
    )
    assert system > bare
    assert effort > bare + 20  # a paragraph


def test_an_unknown_command_is_said_and_not_sent(tmp_path: Path) -> None:
    done = talk(tmp_path, "/sav talk", "/usr/bin is a folder?", "/reset now", "/save", "/load")
    assert done.code == 1
    assert done.answers == ""
    assert done.notes.splitlines() == [
        "mlx-dsv4: /sav is no command and was not sent; /help lists them",
        "mlx-dsv4: /usr/bin is no command and was not sent; /help lists them",
        "mlx-dsv4: /reset takes nothing; got 'now'",
        "mlx-dsv4: /save needs the name of a file",
        "mlx-dsv4: /load needs the name of a file; the lines after /load are not sent",
    ]
    assert list(tmp_path.iterdir()) == []


def test_exit_leaves_before_the_lines_after_it(tmp_path: Path) -> None:
    done = talk(tmp_path, "/help", "/exit", "hello")
    assert done.code == 0
    assert all(f"/{name}" in done.answers for name in ("reset", "save FILE", "load FILE", "stats"))
    assert done.counts == []


def test_reset_forgets_the_conversation_and_keeps_the_system_text(tmp_path: Path) -> None:
    options = ("--system", "Be brief.", "--no-thinking")
    done = talk(tmp_path, "hello", "/reset", "hello", "hello", options=options)
    first, again, third = done.counts
    assert again == first
    assert third[0] > first[0]
    assert done.answers.startswith(2 * done.answers[: len(done.answers.split("\n")[0]) + 1])


def test_stats_say_what_is_held(tmp_path: Path) -> None:
    done = talk(tmp_path, LONG_QUESTION, "/stats", options=("--context", "2000", "--no-thinking"))
    ((prompt, _, _, generated),) = done.counts
    # The last drawn token, whatever it is, has not been read.
    assert f"session   {prompt + generated - 1} of 2000 tokens, " in done.answers
    assert f"goes back to 1, {prompt - 8}\n" in done.answers
    assert "DeepSeek-V4 tiny, official numerics on the cpu, deepseek-recipe" in done.answers
    assert re.search(r"weights   39\.5 MB in the file, of which [\d.]+ MB", done.answers)


@pytest.mark.parametrize("thinking", ["--thinking", "--no-thinking"])
def test_another_process_goes_on_with_everything_cached(tmp_path: Path, thinking: str) -> None:
    options = (thinking, "--effort", "max")
    lines = (LONG_QUESTION, "and then?", "go on")
    whole = talk(tmp_path, *lines, options=options)
    talk(tmp_path, *lines[:2], "/save talk", options=options)
    later = talk(tmp_path, "/load talk", lines[2], "/save talk", options=("--no-thinking",))
    assert later.code == 0, later.notes
    ((prompt, cached, kind, generated),) = later.counts
    assert (prompt, generated) == (whole.counts[2][0], whole.counts[2][3])
    # "go", " on" or their letters, <|Assistant|>, <think> or </think>
    assert prompt - cached <= len(lines[2]) + 2
    assert kind == "live"
    assert f"loaded from talk: 2 answers, {cached} tokens cached\n" in later.notes
    assert whole.answers.endswith(later.answers)
    assert [exchange["question"] for exchange in kept(tmp_path / "talk")["exchanges"]] == [*lines]


def test_a_store_finds_a_conversation_that_nobody_saved(tmp_path: Path) -> None:
    options = ("--store", str(tmp_path / "store"), "--no-thinking")
    question = f"{LONG_QUESTION} {LONG_QUESTION}"  # positions of less than 128 tokens are not kept
    talk(tmp_path, question, options=options)
    again = talk(tmp_path, question, options=options)
    ((prompt, cached, kind, _),) = again.counts
    assert (kind, cached) == ("disk", prompt - 8)


def test_a_file_that_cannot_be_saved_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    os.mkfifo(tmp_path / "pipe")
    whole = talk(tmp_path, LONG_QUESTION, "go on", options=("--no-thinking",))
    bad = ("/save other", "/save no/where", "/save pipe", "/save a\0b", "/save other/x")
    done = talk(tmp_path, LONG_QUESTION, *bad, "go on", options=("--no-thinking",))
    assert done.code == 1
    assert [line for line in done.notes.splitlines() if line.startswith("mlx-dsv4: ")] == [
        "mlx-dsv4: other: exists and is no conversation; choose another name",
        "mlx-dsv4: no/where: No such file or directory",
        "mlx-dsv4: pipe: must be a conversation, to be replaced; got a device, socket or pipe",
        "mlx-dsv4: a\0b: a path must hold neither null characters nor lone surrogates",
        "mlx-dsv4: other/x: Not a directory",
    ]
    assert done.answers == whole.answers
    assert (tmp_path / "other").read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"other", "pipe"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (" other", "other: must be a conversation from /save; begins otherwise"),
        (" nowhere", "nowhere: No such file or directory"),
        (" .", ".: must be a conversation from /save; got a directory"),
        (" pipe", "pipe: must be a conversation from /save; got a device, socket or pipe"),
        (" a\0b", "a\0b: a path must hold neither null characters nor lone surrogates"),
        ("", "/load needs the name of a file"),
    ],
    ids=["text", "absent", "folder", "pipe", "null", "no name"],
)
def test_a_script_ends_where_its_conversation_cannot_be_loaded(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "other").write_text("precious")
    os.mkfifo(tmp_path / "pipe")
    done = talk(tmp_path, f"/load{name}", "hello", "/save talk")
    assert (done.code, done.answers) == (1, "")
    assert done.notes == f"mlx-dsv4: {reason}; the lines after /load are not sent\n"
    assert {path.name for path in tmp_path.iterdir()} == {"other", "pipe"}


def test_a_person_goes_on_after_a_conversation_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    file = tmp_path / "talk"
    with Terminal(command("--max-tokens", "5"), columns=400) as terminal:
        for line, shown in (
            ("first", ENDED),
            (f"/load {tmp_path}/other", "begins otherwise\r\n"),
            ("second", ENDED),
            (f"/save {file}", "saved to"),
        ):
            terminal.until("> ")
            terminal.type(f"{line}\r")
            terminal.until(shown)
        terminal.until("> ")
        terminal.type(CTRL_D)
        assert terminal.rest()[0] == 0
    questions = [exchange["question"] for exchange in kept(file)["exchanges"]]
    assert questions == ["first", "second"]


def test_a_missing_cache_is_said_and_read_again(tmp_path: Path) -> None:
    talk(tmp_path, LONG_QUESTION, "/save talk")
    (cache,) = tmp_path.glob("talk.*.cache")
    whole = talk(tmp_path, "/load talk", "go on")
    cache.unlink()
    done = talk(tmp_path, "/load talk", "go on")
    assert done.code == 0, done.notes
    assert done.notes.startswith(
        f"{cache.name}, the cache of talk, is missing: the next question reads the conversation "
        "again; /save then makes another cache\nloaded from talk: 1 answer, 0 tokens cached\n"
    )
    ((prompt, cached, _, _),) = done.counts
    assert (prompt, cached) == (whole.counts[0][0], 0)
    assert done.answers == whole.answers


def test_a_full_context_is_said_and_the_question_dropped(tmp_path: Path) -> None:
    done = talk(tmp_path, "hello", LONG_QUESTION, "/save talk", options=("--context", "60"))
    assert done.code == 1
    assert "must fit the context of 60 tokens" in done.notes
    assert [exchange["question"] for exchange in kept(tmp_path / "talk")["exchanges"]] == ["hello"]
    none = talk(tmp_path, "/save none")
    assert none.notes == "mlx-dsv4: /save needs an answer to keep; there is none\n"


def test_the_context_ends_an_answer_that_nothing_else_does(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--context", "30", "--seed", "7"), input="hello\n", capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "ended by length: the context is full" in done.stderr


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    done = subprocess.run(
        command("--max-tokens", "2"), input=b"/save x\xff\n\xffhello", capture_output=True
    )
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"2 generated" in done.stderr


def test_usage_errors_end_with_2() -> None:
    for option, value in (("--top-p", "0"), ("--effort", "some"), ("--release", "1")):
        done = subprocess.run(command(option, value), capture_output=True, text=True)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_ctrl_c_ends_a_script(tmp_path: Path) -> None:
    with subprocess.Popen(
        command("--no-thinking", "--temperature", "0"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\nhello\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.count(b"ended by") == errors.count(b"ended by cancelled") == 1


def test_a_terminal_shows_reasoning_dimmed_a_bar_and_counts() -> None:
    with Terminal(command("--temperature", "0", "--max-tokens", "9")) as terminal:
        assert "/help lists commands" in terminal.until("> ")
        terminal.type(LONG_QUESTION.strip() + "\r")
        answered = terminal.until(ENDED)
        assert "reading prompt" in answered
        *_, answer, counts = answered.removesuffix("\r\n").split("\r\n")
        pieces = re.findall(r"\x1b\[2m([^\x1b]+)\x1b\[0m", answer)
        assert len(pieces) > 3
        assert answer.endswith("".join(f"{ESCAPE}[2m{piece}{ESCAPE}[0m" for piece in pieces))
        assert re.fullmatch(rf"{ESCAPE}\[2m\d+ prompt .* ended by length{ESCAPE}\[0m", counts)
        terminal.until("> ")
        terminal.type(CTRL_D)
        assert terminal.rest()[0] == 0


def test_a_terminal_edits_lines_and_goes_back_to_those_before() -> None:
    with Terminal(command()) as terminal:
        terminal.until("> ")
        terminal.type("/stop\x7f\x7fats\r")  # backspace
        terminal.until("scratch [^>]*> ")
        terminal.type("\x1b[A\r")  # arrow up
        terminal.until("scratch ")
        terminal.type("one\\\r")
        terminal.until(r"\.\.\. ")
        terminal.interrupt()
        terminal.until(r"Ctrl-C again[^>]*> ")
        terminal.type("/exit\r")
        code, shown = terminal.rest()
    assert code == 0
    assert "ended by" not in shown


def test_ctrl_c_ends_an_answer_and_the_conversation_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "talk"
    with Terminal(command("--no-thinking", "--seed", "7")) as terminal:
        terminal.until("> ")
        terminal.type("first\r")
        terminal.until(r"first\r\n[^\r\n]{5}")
        terminal.type(CTRL_C)
        assert "ended by cancelled" in terminal.until("interrupted: the question and this answer")
        terminal.until("> ")
        terminal.type("/save nothing\r")
        terminal.until("/save needs an answer to keep[^>]*> ")
        terminal.type("second\r")
        terminal.until(r"second\r\n")
        if "cancelled" not in terminal.until(f"{ENDED}|[^\r\n]{{200}}"):
            terminal.until(f"{ENDED}|[^>]*> ")
        terminal.type(f"/save {file}\r")
        terminal.until("saved to")
        terminal.until("> ")
        terminal.type(CTRL_D)
        assert terminal.rest()[0] == 0
    assert [exchange["question"] for exchange in kept(file)["exchanges"]] == ["second"]


def test_ctrl_c_at_two_prompts_in_a_row_leaves() -> None:
    with Terminal(command("--max-tokens", "1")) as terminal:
        terminal.until("> ")
        terminal.type("not sent")
        terminal.interrupt()
        terminal.until("Ctrl-C again, or Ctrl-D, leaves[^>]*> ")
        terminal.type("/reset\r")
        terminal.until("forgotten[^>]*> ")
        terminal.interrupt()
        terminal.until("Ctrl-C again, or Ctrl-D, leaves[^>]*> ")
        terminal.interrupt()
        code, shown = terminal.rest()
    assert code == 0
    assert "Traceback" not in shown
    assert "ended by" not in shown


def test_a_closed_stdin_is_the_end() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *command()], capture_output=True, text=True, env=os.environ
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
