"""What a caller gets who hands over something else than is expected: its name, and a remedy."""

from pathlib import Path
from typing import Any

import pytest

from cold import GREEDY
from mlx_dsv4 import Engine
from mlx_dsv4.engine import Serving
from mlx_dsv4.errors import ConfigError, ParamsError, PlanError, PromptError
from tiny_models import tiny_model

ASK = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"context": "4096"}, PlanError, r"context must be in 1\.\.4096 tokens; got '4096'"),
        ({"context": 10**30}, PlanError, r"context must be in 1\.\.4096 tokens; got 10{30}$"),
        ({"context": True}, PlanError, r"context must be in 1\.\.4096 tokens; got True"),
        ({"slots": "4"}, PlanError, r"slots must be an integer in 1\.\.1024; got '4'"),
        ({"slots": True}, PlanError, r"slots must be an integer in 1\.\.1024; got True"),
        ({"slots": 10**12}, PlanError, r"slots must be an integer in 1\.\.1024; got 10{12}$"),
        ({"release": "0732"}, ConfigError, "release must be preview, 0731 or None; got '0732'"),
        ({"release": ["0731"]}, ConfigError, r"release must be .*; got \['0731'\]"),
        ({"numerics": "fast"}, ConfigError, "numerics must be official or plain; got 'fast'"),
        ({"serving": {"chunk": 1}}, ConfigError, r"serving must be a Serving; got {'chunk': 1}"),
        ({"store": 3}, ConfigError, r"store must be a folder .*; got 3"),
    ],
)
def test_what_an_engine_cannot_be_loaded_with(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Engine.load(tiny_model().path, warm_up=False, **options)


@pytest.mark.parametrize("path", [None, 3, b"model.gguf"])
def test_a_path_that_is_none(path: Any) -> None:
    with pytest.raises(ConfigError, match=r"path must be a str or os\.PathLike; got "):
        Engine.load(path)


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"the store must be a folder.*file'"):
        Engine.load(tiny_model().path, warm_up=False, store=tmp_path / "file")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("row_dtype", "float16", "row_dtype must be bfloat16 or float32; got 'float16'"),
        ("max_waiting", True, "max_waiting must be an integer >= 1; got True"),
        ("max_waiting", None, "max_waiting must be an integer >= 1; got None"),
        ("store_bytes", "1G", "store_bytes must be an integer >= 1; got '1G'"),
    ],
)
def test_fields_of_serving(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Serving(**{field: value})


@pytest.mark.parametrize("prompt", [None, b"Hi", bytearray(b"Hi"), 5])
def test_a_prompt_that_is_neither_text_nor_ids(engine: Engine, prompt: Any) -> None:
    with pytest.raises(PromptError, match="prompt must be text or token ids; got "):
        engine.generate(prompt, GREEDY)


@pytest.mark.parametrize("params", [None, {"max_tokens": 4}, 4])
def test_params_of_another_type(engine: Engine, params: Any) -> None:
    for ask in (
        lambda: engine.generate("Hi", params),
        lambda: engine.stream("Hi", params),
        lambda: engine.chat(ASK, params),
        lambda: engine.stream_chat(ASK, params),
    ):
        with pytest.raises(ParamsError, match=r"params must be a Params, such as .*; got "):
            ask()


def test_fields_of_params_as_keywords(engine: Engine) -> None:
    wrong: dict[str, Any] = {"max_tokens": 4}
    for ask in (
        lambda: engine.generate("Hi", **wrong),
        lambda: engine.stream("Hi", **wrong),
        lambda: engine.chat(ASK, **wrong),
        lambda: engine.stream_chat(ASK, **wrong),
    ):
        with pytest.raises(TypeError, match=r"must be asked for as Params\(max_tokens=4\)"):
            ask()
    unknown: dict[str, Any] = {"max_token": 4}
    with pytest.raises(TypeError, match="no argument 'max_token'"):
        engine.chat(ASK, **unknown)
