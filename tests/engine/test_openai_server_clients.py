"""The example server when clients wait and leave, and when something fails."""

import json
import logging
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIError, APIStatusError, OpenAI

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Serving
from mlx_dsv4.errors import AllocationError
from serving import force, serving
from tiny_models import tiny_model

TINY = tiny_model()
SERVER = Path(__file__).parents[2] / "examples/openai_server.py"
NO_STOP = {1: -1000, 1002: -1000, 1003: -1000}  # what ends a turn in the small vocabulary
ENDLESS = Params(max_tokens=3000, logit_bias=NO_STOP)
HELLO = {"prompt": "hello", "max_tokens": 3000, "logit_bias": NO_STOP}
LONG = {"prompt": [7] * 3500, "max_tokens": 1}
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(TINY.path, slots=1, serving=Serving(max_waiting=1), warm_up=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def http(engine: Engine) -> Iterator[httpx.Client]:
    with (
        serving(engine, keep_alive_seconds=0.05) as address,
        httpx.Client(base_url=address, timeout=60) as http,
    ):
        yield http


def wait_for(engine: Engine, *, running: int, waiting: int = 0) -> None:
    deadline = time.monotonic() + 10
    while (engine.status().running, engine.status().waiting) != (running, waiting):
        assert time.monotonic() < deadline, engine.status()
        time.sleep(0.005)


def generated(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """Reason and tokens of the generations that the engine's log tells of."""
    return [
        (record.finish_reason, record.generated_tokens)  # type: ignore[attr-defined]
        for record in caplog.records
        if hasattr(record, "generated_tokens")
    ]


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_reader_that_leaves_ends_its_generation(
    http: httpx.Client, engine: Engine, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level(logging.INFO, "mlx_dsv4")
    asked = {**CHAT, **HELLO, "stream": True}
    with http.stream("POST", f"/v1/{path}", json=asked) as response:
        lines = response.iter_lines()
        data = [next(line for line in lines if line.startswith("data: {")) for _ in range(3)]
    assert [json.loads(line[6:])["model"] for line in data] == ["tiny"] * 3
    wait_for(engine, running=0)
    [(reason, n_tokens)] = generated(caplog)
    assert reason == "cancelled"
    assert n_tokens < 1500


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_client_that_gives_up_on_a_whole_answer_ends_its_generation(
    http: httpx.Client, engine: Engine, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level(logging.INFO, "mlx_dsv4")
    with pytest.raises(httpx.ReadTimeout):
        http.post(f"/v1/{path}", json={**CHAT, **HELLO}, timeout=0.3)
    wait_for(engine, running=0)
    [(reason, n_tokens)] = generated(caplog)
    assert reason == "cancelled"
    assert 0 < n_tokens < 1500


def test_a_client_that_leaves_while_it_waits_gives_its_place_back(
    http: httpx.Client, engine: Engine
) -> None:
    with engine.stream("hello", ENDLESS):
        wait_for(engine, running=1)
        with http.stream("POST", "/v1/completions", json={**HELLO, "stream": True}) as response:
            lines = response.iter_lines()
            assert next(lines) == ": keep-alive, waiting"
            wait_for(engine, running=1, waiting=1)
        wait_for(engine, running=1, waiting=0)
    wait_for(engine, running=0)


def test_a_long_prompt_is_told_about_in_comments(http: httpx.Client) -> None:
    with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        lines = [line for line in response.iter_lines() if line]
    comments = [line for line in lines if line.startswith(":")]
    assert len(comments) >= 2
    assert any(comment.endswith(" of 3500 prompt tokens read") for comment in comments)
    assert lines[: len(comments)] == comments
    assert [line[:6] for line in lines[len(comments) :]] == ["data: "] * (
        len(lines) - len(comments)
    )
    assert lines[-1] == "data: [DONE]"


def test_clients_pass_over_comments(http: httpx.Client) -> None:
    asked: dict[str, Any] = {"model": "any", "prompt": [8] * 3500, "max_tokens": 3}
    with OpenAI(base_url=f"{http.base_url}/v1/", api_key="none", max_retries=0) as client:
        pieces = list(client.completions.create(**asked, stream=True, temperature=0))
        whole = client.completions.create(**asked, temperature=0)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


def test_the_queue_has_an_end(http: httpx.Client, engine: Engine) -> None:
    with ExitStack() as streams:
        for running, waiting in ((1, 0), (1, 1)):
            streams.enter_context(engine.stream("hello", ENDLESS))
            wait_for(engine, running=running, waiting=waiting)
        response = http.post("/v1/chat/completions", json=CHAT)
        with (
            OpenAI(base_url=f"{http.base_url}/v1/", api_key="none", max_retries=0) as client,
            pytest.raises(APIStatusError, match="requests may wait") as caught,
        ):
            client.chat.completions.create(model="any", **CHAT)
    assert response.status_code == caught.value.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["type"] == "rate_limit_error"
    wait_for(engine, running=0)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (AllocationError("no memory"), 503, "out_of_memory"),
        (RuntimeError("a secret"), 500, "internal_error"),
    ],
)
def test_a_failure_while_it_runs_is_told(
    http: httpx.Client,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
    code: str,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(engine._slots, "begin", fail)
    response = http.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert ("Traceback" in caplog.text) == (status == 500)
    with (
        OpenAI(base_url=f"{http.base_url}/v1/", api_key="none", max_retries=0) as client,
        pytest.raises(APIError) as caught,
    ):
        list(client.chat.completions.create(model="any", stream=True, **CHAT))
    assert caught.value.code == code


def test_the_log_has_no_text_of_anybody(
    http: httpx.Client,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "mlx_dsv4")
    caplog.set_level(logging.DEBUG, "openai_server")
    force(monkeypatch, engine, "an answer of sorts")
    messages = [{"role": "user", "content": "a question of sorts"}]
    assert "of sorts" in http.post("/v1/chat/completions", json={"messages": messages}).text
    http.post("/v1/chat/completions", json={"messages": messages, "n": 2})
    http.post("/v1/chat/completions", json={"messages": ["of sorts"]})
    assert len(generated(caplog)) == 1
    assert "of sorts" not in caplog.text


def test_a_closed_engine_is_told() -> None:
    engine = Engine.load(TINY.path, warm_up=False)
    with serving(engine) as address, httpx.Client(base_url=address) as http:
        assert (http.get("/health").status_code, http.get("/health").json()) == (
            200,
            {"status": "ok"},
        )
        engine.close()
        assert http.get("/health").status_code == 503
        response = http.post("/v1/completions", json=HELLO)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "closed")
    assert error["message"] == "the server is ending"


def has_address(host: str) -> bool:
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        pytest.param("::1", marks=pytest.mark.skipif(not has_address("::1"), reason="no IPv6")),
    ],
)
def test_a_port_in_use_is_found_before_the_model_is_loaded(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as taken:
        port = taken.getsockname()[1]
        options = ["no-such-model.gguf", "--host", host, "--port", str(port)]
        done = subprocess.run([sys.executable, SERVER, *options], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {host} port {port} cannot be listened on: Address already in use; "
        "--host and --port choose another\n"
    )


@pytest.mark.parametrize(
    ("option", "value"), [("--port", "65536"), ("--port", "-1"), ("--host", "no.such.host.invalid")]
)
def test_an_address_that_cannot_be_is_named(option: str, value: str) -> None:
    command = [sys.executable, SERVER, "no-such-model.gguf", option, value]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(rf"error: .*{re.escape(value)}.* cannot be listened on: .*\n", done.stderr)


def test_ctrl_c_ends_what_runs_and_the_program(tmp_path: Path) -> None:
    """The program as it is started: from a shell, until Ctrl-C in the middle of an answer."""
    options = [TINY.path, "--port", "0", "--store", tmp_path / "caches", "--slots", "1"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, SERVER, *map(str, options)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    with process:
        line = next(line for line in process.stderr if "listening on" in line)
        address = line.split("listening on ")[1].strip()
        assert address.startswith("http://127.0.0.1:")
        asked = {**HELLO, "prompt": [7] * 300, "stream": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=asked, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            last = [line for line in lines if line][-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert (error["code"], error["message"]) == ("closed", "the server is ending")
        log = process.stderr.read()
        assert process.wait(timeout=30) == 0, log
    assert "Traceback" not in log
    assert list((tmp_path / "caches").iterdir())


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit, match=r"pip install 'starlette>=0\.40' 'uvicorn>=0\.30'"):
        runpy.run_path(str(SERVER))
