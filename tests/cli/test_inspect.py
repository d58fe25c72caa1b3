"""``mlx-dsv4 inspect`` says what loading says, also of what the header does not show."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fuzz.corpus import corpus
from fuzz.document import Document, Tensor
from mlx_dsv4 import Engine
from mlx_dsv4.cli.app import app
from mlx_dsv4.errors import Dsv4Error

TABLE, BIAS, NORM = "blk.0.ffn_gate_tid2eid.weight", "blk.1.exp_probs_b.bias", "output_norm.weight"


@pytest.fixture
def document() -> Document:
    """A small model: 300 tokens, 4 experts, a hash layer."""
    return corpus()[0]["small.gguf"].copy()


def inspected(document: Document, folder: Path) -> tuple[int, str]:
    path = folder / "model.gguf"
    path.write_bytes(document.encode().raw)
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def tensor(document: Document, name: str) -> Tensor:
    return next(tensor for tensor in document.tensors if tensor.name == name.encode())


def put(name: str, index: int, dtype: str, value: float) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        values = np.frombuffer(tensor(document, name).data, dtype).copy()
        values[index] = value
        tensor(document, name).data = values.tobytes()

    return change


def without(name: str) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        key = document.key(f"tokenizer.ggml.{name}")
        assert key is not None
        document.keys.remove(key)

    return change


def text(name: str, value: str) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        key = document.key(f"tokenizer.ggml.{name}")
        assert key is not None
        key.body = struct.pack("<Q", len(value)) + value.encode()

    return change


def one_token_more(document: Document) -> None:
    for name, item in (("tokens", struct.pack("<Q", 3) + b"new"), ("token_type", b"\1\0\0\0")):
        key = document.key(f"tokenizer.ggml.{name}")
        assert key is not None
        item_type, count = struct.unpack_from("<IQ", key.body)
        key.body = struct.pack("<IQ", item_type, count + 1) + key.body[12:] + item


def unknown_merge(document: Document) -> None:
    key = document.key("tokenizer.ggml.merges")
    assert key is not None
    key.body = struct.pack("<IQQ", 8, 1, 3) + b"a q"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(TABLE, 3, "<i4", 4), f"{TABLE} must hold expert ids 0 to 3; got 4 for token 1"),
        (put(TABLE, -1, "<i4", -1), f"{TABLE} must hold expert ids 0 to 3; got -1 for token 299"),
        (put(BIAS, 2, "<f4", np.nan), f"{BIAS} must hold finite values; got nan at [2], 1 of 4"),
        (put(NORM, 5, "<f4", -np.inf), f"{NORM} must hold finite values; got -inf at [5], 1 of 32"),
        *((without(name), f"tokenizer.ggml.{name} must be") for name in ("model", "pre", "tokens")),
        (without("token_type"), "tokenizer.ggml.token_type must be an array of 300 types"),
        (without("merges"), "tokenizer.ggml.merges must be an array of strings; got nothing"),
        (without("bos_token_id"), "tokenizer.ggml.bos_token_id must be a token id in 0..299"),
        (without("eos_token_id"), "tokenizer.ggml.eos_token_id must be a token id in 0..299"),
        (text("model", "llama"), "tokenizer.ggml.model must be 'gpt2'; got 'llama'"),
        (text("pre", "default"), "tokenizer.ggml.pre must be 'joyai-llm' or 'deepseek-v3'"),
        (unknown_merge, "tokenizer.ggml.merges[0] must be two ordinary tokens"),
        (one_token_more, "the vocabulary must fit the 300 rows of token_embd.weight; got 301"),
    ],
)
def test_what_loading_refuses_does_not_run(
    change: Callable[[Document], None], message: str, document: Document, tmp_path: Path
) -> None:
    assert inspected(document, tmp_path)[0] == 0
    change(document)
    code, output = inspected(document, tmp_path)
    with pytest.raises(Dsv4Error) as refusal:
        Engine.load(tmp_path / "model.gguf")
    assert message in str(refusal.value)
    assert f"  {refusal.value}\n" in output
    assert code == 1
    assert "nothing is missing" not in output


def test_all_faults_are_listed_at_once(document: Document, tmp_path: Path) -> None:
    for change in (
        put(TABLE, 0, "<i4", 9),
        put(BIAS, 0, "<f4", np.nan),
        put("blk.2.exp_probs_b.bias", 0, "<f4", np.nan),
        without("pre"),
    ):
        change(document)
    tensor(document, NORM).type_id = 77
    tensor(document, "blk.1.attn_sinks.weight").dims.append(1)
    document.tensors.remove(tensor(document, "blk.0.attn_norm.weight"))
    code, output = inspected(document, tmp_path)
    assert code == 1
    for title in (
        "missing (1)",
        "wrong (1)",
        "unsupported (1)",
        "wrong values (3)",
        "tokenizer (1)",
    ):
        assert title in output
