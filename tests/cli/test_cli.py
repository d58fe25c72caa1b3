"""The command line as a user types it: output, exit codes, and no tracebacks."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gguf
from mlx_dsv4 import Engine, Params, __version__

COMMAND = [sys.executable, "-m", "mlx_dsv4"]
# Greedy text of the tiny model that goes on for some hundred tokens.
LONG = ["generate", "--prompt", "x", "--max-tokens", "4000", "--temperature", "0"]


def run(
    *arguments: str | Path, timeout_s: float = 120, columns: int = 200, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        input=typed,
        timeout=timeout_s,
        env=os.environ | {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"},
    )


def unboxed(message: str) -> str:
    """A usage error without its frame, on one line."""
    return re.sub(r"[│╭╮╰╯─\s]+", " ", message)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "tiny.gguf"
    made = run("make-tiny", path)
    assert made.returncode == 0, made.stderr
    assert re.search(r"tiny\.gguf: \d+\.\d MB, 6 layers", made.stdout)
    return path


def generate(model: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run("generate", "--model", model, "--prompt", "def f(x):", *more)


def test_generate_prints_text_and_then_counts_and_rates(tiny: Path) -> None:
    done = generate(tiny, "--max-tokens", "12", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 5
    pattern = r"\d+ prompt tokens, [\d.]+ tokens/s; \d+ generated, [\d.]+ tokens/s; ended by \w+"
    assert re.fullmatch(pattern, done.stderr.strip())


def test_a_seed_repeats_and_numerics_changes_the_text(tiny: Path) -> None:
    first, again, other, plain = (
        generate(tiny, "--max-tokens", "20", *more).stdout
        for more in (
            ("--seed", "5"),
            ("--seed", "5"),
            ("--seed", "6"),
            ("--temperature", "0", "--numerics", "plain"),
        )
    )
    assert first == again
    assert first != other
    greedy = generate(tiny, "--max-tokens", "20", "--temperature", "0").stdout
    assert greedy != plain


def test_the_context_bounds_the_generation(tiny: Path) -> None:
    done = generate(tiny, "--context", "16", "--max-tokens", "500", "--temperature", "0")
    prompt, generated = map(int, re.search(r"(\d+) prompt.*?(\d+) generated", done.stderr).groups())
    assert prompt + generated - 1 == 16
    assert "ended by length: the context is full" in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "nowhere.gguf", "--prompt", "x"], 1, "nowhere.gguf: No such file"),
        (["--model", __file__, "--prompt", "x"], 1, "must be a GGUF file"),
        (["--prompt", "x"], 2, "a model is needed, --model FILE or --demo; got neither"),
        (["--model", "TINY", "--demo", "--prompt", "x"], 2, "or --demo; got both"),
        (["--model", "TINY", "--prompt", ""], 1, "the prompt is empty"),
        (["--model", "TINY", "--prompt", "x" * 50, "--context", "9"], 1, "context of 9 tokens"),
        (["--model", "TINY", "--prompt", "x", "--context", "99999"], 1, r"1\.\.4096 tokens"),
        (["--model", "TINY", "--prompt", "x", "--context", "0"], 2, "context"),
        (["--model", "TINY", "--prompt", "x", "--seed", "x"], 2, "seed"),
        (["--model", "TINY", "--prompt", "x", "--numerics", "fp8"], 2, "numerics"),
    ],
)
def test_bad_input_is_one_message_and_a_code(
    tiny: Path, arguments: list[str], code: int, message: str
) -> None:
    done = run("generate", *[str(tiny) if a == "TINY" else a for a in arguments])
    assert done.returncode == code
    assert re.search(message, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--top-p", "0", "top_p must be a number above 0 and <= 1; got 0.0"),
        ("--top-p", "1.5", "top_p must be a number above 0 and <= 1; got 1.5"),
        ("--temperature", "-1", "temperature must be a number >= 0 and <= 1e+30; got -1.0"),
        ("--temperature", "nan", "temperature must be a number >= 0 and <= 1e+30; got nan"),
        ("--max-tokens", "0", "max_tokens must be an integer >= 1; got 0"),
        ("--top-k", "-1", "top_k must be an integer >= 0; got -1"),
        ("--seed", "-1", "seed must be an integer >= 0; got -1"),
        ("--min-p", "-0.1", "min_p must be a number >= 0 and <= 1; got -0.1"),
        ("--repetition-penalty", "0", "repetition_penalty must be a number above 0 and "),
        ("--frequency-penalty", "inf", "frequency_penalty must be a number >= -1e+30 and "),
        ("--presence-penalty", "nan", "presence_penalty must be a number >= -1e+30 and "),
        ("--stop", "", "stop must be strings of at least one character; got ['']"),
    ],
)
def test_a_parameter_out_of_range_is_a_usage_error_with_rule_and_value(
    tiny: Path, option: str, value: str, message: str
) -> None:
    done = run("generate", "--model", tiny, "--prompt", "x", option, value, columns=80)
    assert done.returncode == 2
    assert f"Invalid value: {message}" in unboxed(done.stderr)
    assert max(map(len, done.stderr.splitlines())) <= 80
    assert done.stdout == ""


def test_a_stop_text_ends_the_generation_before_it(tiny: Path) -> None:
    greedy = ("--max-tokens", "20", "--temperature", "0")
    whole = generate(tiny, *greedy).stdout
    stop = whole[9:12]
    cut = generate(tiny, *greedy, "--stop", "not in it", "--stop", stop)
    assert cut.stdout == whole[: whole.index(stop)] + "\n"
    assert "ended by stop" in cut.stderr


@pytest.mark.parametrize(
    "name", ["top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"]
)
def test_an_option_does_what_the_parameter_of_its_name_does(tiny: Path, name: str) -> None:
    value = {"top_k": 2, "min_p": 0.5}.get(name, 4.0)
    params = Params(max_tokens=30, seed=1, **{name: value})
    with Engine.load(tiny, slots=1, warm_up=False) as engine:
        expected = engine.generate("def f(x):", params).text
    option = f"--{name.replace('_', '-')}"
    command = ("--max-tokens", "30", "--seed", "1")
    assert generate(tiny, *command, option, str(value)).stdout == f"{expected}\n"
    assert generate(tiny, *command).stdout != f"{expected}\n"


def test_too_little_memory_is_said_before_anything_is_made(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlx_dsv4 import cli

    monkeypatch.setattr("mlx_dsv4.cache.buffers.available_bytes", lambda: 1000)
    monkeypatch.setattr(
        sys, "argv", ["mlx-dsv4", "generate", "--model", str(tiny), "--prompt", "x"]
    )
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    assert exit_info.value.code == 1
    assert "1000 are available on this machine: choose a smaller context" in capsys.readouterr().err


def test_ctrl_c_ends_with_130_and_the_text_so_far(tiny: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, *LONG, "--model", tiny],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        begun = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert begun + rest
    assert "ended by cancelled" in errors
    assert "Traceback" not in errors


def test_a_closed_pipe_is_no_error_report(tiny: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, *LONG, "--model", tiny],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_output_that_cannot_show_a_character_or_is_closed(tiny: Path) -> None:
    arguments = ["generate", "--model", str(tiny), "--prompt", "x", "--temperature", "0"]
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    closed = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *COMMAND, *arguments], capture_output=True, text=True
    )
    assert closed.returncode == 0
    assert "Traceback" not in closed.stderr


def test_errors_go_nowhere_where_stderr_is_closed() -> None:
    odd = os.fsdecode(b"/nowhere/\xff")
    for closed in ("2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
        for arguments, code in ((["inspect", odd], 1), (["inspect", odd, odd], 2)):
            command = ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND, *arguments]
            done = subprocess.run(command, capture_output=True)
            assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_closed_output_does_not_end_in_the_next_file_that_is_opened() -> None:
    code = (
        "import os, sys\n"
        "from mlx_dsv4 import cli\n"
        "cli._prepare_output()\n"
        "sys.exit(os.open(os.curdir, os.O_RDONLY))\n"
    )
    for closed, free in (("2>&-", 3), (">&- 2>&-", 3), (">&-", 3), ("<&- >&- 2>&-", 0)):
        command = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", code]
        assert subprocess.run(command, stdin=subprocess.DEVNULL).returncode == free


def test_a_file_name_that_is_no_utf8(tiny: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff \n.gguf"
    os.symlink(tiny, odd)
    done = subprocess.run(
        [*COMMAND, "generate", "--model", odd, "--prompt", "x", "--max-tokens", "2"],
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 100; "$@"', "sh", *COMMAND, "make-tiny", tmp_path / "x.gguf"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "x.gguf: " in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_sees_a_progress_bar(tiny: Path) -> None:
    leader, follower = pty.openpty()
    arguments = ["generate", "--model", str(tiny), "--prompt", "x" * 3000, "--max-tokens", "1"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=follower):
        os.close(follower)
        seen = b""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                piece = os.read(leader, 4096)
            except OSError:  # the other side is closed
                break
            seen += piece
    os.close(leader)
    assert b"reading prompt" in seen
    assert re.search(rb"\d+/\d+", seen)


def test_inspect_shows_the_card(tiny: Path) -> None:
    done = run("inspect", tiny)
    assert done.returncode == 0
    for expected in ("0, 0, 4, 128, 4, 128", "mxfp4", "q8_0", "bytes per token", "runs"):
        assert expected in done.stdout


def test_inspect_prints_names_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "[/x]")
    writer.add_name("[bold] name")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    done = run("inspect", path)
    assert done.returncode == 1, done.stderr
    assert "[bold] name\n" in done.stdout
    assert "architecture [/x]\n" in done.stdout


def test_inspect_says_what_keeps_a_file_from_running(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny.read_bytes().replace(b"blk.3.attn_kv.weight", b"blk.3.attn_kw.weight"))
    done = run("inspect", broken)
    assert done.returncode == 1
    assert "missing (1)" in done.stdout
    assert "blk.3.attn_kv.weight" in done.stdout
    assert "unmatched (1)" in done.stdout
    failed = generate(broken)
    assert failed.returncode == 1
    assert "blk.3.attn_kv.weight" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_another_architecture_is_named(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "llama.gguf"
    other.write_bytes(tiny.read_bytes().replace(b"deepseek4", b"llamamodl"))
    done = generate(other)
    assert done.returncode == 1
    assert "llamamodl" in done.stderr


def test_make_tiny_repeats_to_the_byte_and_takes_formats(tiny: Path, tmp_path: Path) -> None:
    again, other, full = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    assert run("make-tiny", again).returncode == 0
    assert run("make-tiny", other, "--seed", "1").returncode == 0
    assert again.read_bytes() == tiny.read_bytes() != other.read_bytes()
    assert run("make-tiny", full, "--dense", "f32", "--experts", "f32").returncode == 0
    assert full.stat().st_size > 2 * tiny.stat().st_size


def test_make_tiny_replaces_a_file_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    out.write_text("precious")
    refused = run("make-tiny", out)
    assert refused.returncode == 1
    assert "x.gguf: exists; --force replaces it" in refused.stderr
    assert out.read_text() == "precious"
    assert run("make-tiny", out, "--force").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_make_tiny_into_nowhere_fails_cleanly(tmp_path: Path) -> None:
    done = run("make-tiny", tmp_path / "no" / "x.gguf")
    assert done.returncode == 1
    assert "No such file" in done.stderr


def test_doctor_finds_a_working_installation() -> None:
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stdout
    probes = {result["probe"]: result for result in json.loads(done.stdout)}
    assert all(result["ok"] for result in probes.values())
    assert {"mlx_version", "mlx_backend", "extension", "arrays_cross", "cpu", "shaders"} <= set(
        probes
    )


def test_doctor_names_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from mlx_dsv4 import backend
    from mlx_dsv4.cli.app import app

    monkeypatch.setattr(backend, "installed_mlx", lambda: "0.1.0")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    assert "FAIL  mlx_version" in result.output
    assert "compiled for mlx 0.32.4, installed is 0.1.0" in result.output
    assert "-> install that mlx" in result.output
    assert "FAIL  extension     needs mlx_version\n" in result.output


def test_version_and_help() -> None:
    assert run("--version").stdout == f"mlx-dsv4 {__version__}\n"
    helped = run("generate", "--help").stdout
    options = (
        "--temperature",
        "--top-p",
        "--top-k",
        "--min-p",
        "--seed",
        "--numerics",
        "--context",
    )
    assert all(option in helped for option in options)
