"""What is refused: one typed message that names file and tensor, and no file left behind."""

import errno
import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mlx_dsv4.checkpoint import convert
from mlx_dsv4.errors import (
    ConfigError,
    FileFormatError,
    TensorError,
    UnsupportedModelError,
)
from released import Released, Stored, config_json, make_released

INDEX = "model.safetensors.index.json"
SHARD = "model-00001-of-00003.safetensors"


@pytest.fixture(scope="module")
def small() -> Released:
    return make_released(2, ratios=(0, 4), hash_layers=1, experts=2)


@pytest.fixture
def folder(small: Released, tmp_path: Path) -> Path:
    return small.write(tmp_path / "checkpoint")


def refused(folder: Path, error: type[Exception], message: str, **options: str) -> Exception:
    """Convert over a file of somebody's: it stays, and so does the folder."""
    out = folder.parent / "out.gguf"
    out.write_bytes(b"precious")
    before = sorted(folder.parent.iterdir())
    with pytest.raises(error, match=message) as caught:
        convert(folder, out, **options)
    assert out.read_bytes() == b"precious"
    assert sorted(folder.parent.iterdir()) == before
    return caught.value


def with_tensors(small: Released, folder: Path, **changes: Stored | None) -> Path:
    stored = small.stored | {name.replace("__", "."): t for name, t in changes.items()}
    stored = {name: tensor for name, tensor in stored.items() if tensor is not None}
    return replace(small, stored=stored).write(folder)


def changed(stored: Stored, index: int, byte: int) -> Stored:
    data = bytearray(stored.data)
    data[index] = byte
    return replace(stored, data=bytes(data))


def test_one_report_of_all_that_is_missing_wrong_and_unmatched(small: Released, tmp_path: Path):
    flat = replace(small.stored["layers.1.attn.wkv.scale"], shape=(4, 1))
    half = replace(small.stored["layers.0.attn.wo_b.scale"], shape=(2, 1), data=b"xy")
    ids = replace(small.stored["layers.0.ffn.gate.tid2eid"], dtype="F32", shape=(2048, 1))
    assert len(flat.data) == 4
    folder = with_tensors(
        small,
        tmp_path / "checkpoint",
        layers__0__attn__wq_a__weight=None,
        layers__1__ffn__experts__1__w2__scale=None,
        layers__1__attn__wkv__scale=flat,
        layers__0__attn__wo_b__scale=half,
        layers__0__ffn__gate__tid2eid=ids,
        layers__1__engram__weight=small.stored["norm.weight"],
        hc_head_fn=small.stored["layers.0.attn.wq_b.weight"],
    )
    error = refused(folder, TensorError, "the tensors must be those of the configuration")
    assert error.missing == ("layers.0.attn.wq_a.weight", "layers.1.ffn.experts.1.w2.scale")
    assert set(error.wrong) == {
        "layers.1.attn.wkv.scale",
        "layers.0.attn.wo_b.scale",
        "layers.0.ffn.gate.tid2eid",
        "hc_head_fn",
    }
    assert error.unmatched == ("layers.1.engram.weight",)
    for part in (
        str(folder),
        "layers.1.attn.wkv.scale must be [2, 2]; got [4, 1]",
        "layers.0.attn.wo_b.scale must be [2, 2]; got [2, 1]",
        "layers.0.ffn.gate.tid2eid must be I64 or I32; got F32",
        "hc_head_fn must be F32 or BF16; got F8_E4M3",
    ):
        assert part in str(error)


@pytest.mark.parametrize(
    ("name", "stored", "rule"),
    [
        ("norm.weight", Stored("F32", (80,), b"\0" * 320), "must be [160]; got [80]"),
        ("norm.weight", Stored("F64", (160,), b"\0" * 1280), "must be F32 or BF16; got F64"),
        (
            "layers.1.ffn.experts.1.w1.weight",
            Stored("I8", (96, 160), b"\0" * 96 * 160),
            "must be [96, 80]; got [96, 160]",
        ),
        (
            "layers.1.ffn.experts.1.w1.weight",
            Stored("BF16", (96, 160), b"\0" * 96 * 320),
            "must be I8, as the first expert is; got BF16",
        ),
        (
            "layers.1.ffn.experts.0.w1.scale",
            Stored("F8_E8M0", (96, 10), b"\0" * 960),
            "must be [96, 5]; got [96, 10]",
        ),
        (
            "layers.0.attn.wq_a.scale",
            Stored("F32", (1, 2), b"\0" * 8),
            "must be F8_E8M0 or U8; got F32",
        ),
    ],
)
def test_each_wrong_tensor_is_named(
    name: str, stored: Stored, rule: str, small: Released, tmp_path: Path
):
    folder = replace(small, stored=small.stored | {name: stored}).write(tmp_path / "checkpoint")
    error = refused(folder, TensorError, re.escape(f"{name} {rule}"))
    assert error.wrong == (name,)


def test_rows_that_are_no_whole_blocks_are_refused_in_q8_0_alone(tmp_path: Path):
    odd = make_released(2, ratios=(0,), hash_layers=0, experts=2, q_rank=40)
    folder = odd.write(tmp_path / "checkpoint")
    refused(folder, TensorError, "wq_b.weight must have rows of a multiple of 32 for q8_0; got 40")
    convert(folder, tmp_path / "exact.gguf", dense="bf16")


def test_a_tensor_that_the_model_has_no_place_for_is_refused(small: Released, tmp_path: Path):
    extra = {"layers.1.engram.weight": small.stored["norm.weight"]}
    folder = replace(small, stored=small.stored | extra).write(tmp_path / "checkpoint")
    error = refused(folder, TensorError, r"unmatched \(1\):\n    layers\.1\.engram\.weight")
    assert (error.missing, error.wrong) == ((), ())


def test_names_that_transformers_writes_are_named(small: Released, tmp_path: Path):
    stored = {f"model.{name}": tensor for name, tensor in small.stored.items()}
    folder = replace(small, stored=stored).write(tmp_path / "checkpoint")
    refused(folder, UnsupportedModelError, "names of DeepSeek's release.* transformers wrote")


WKV, W3 = "layers.1.attn.wkv.scale", "layers.1.ffn.experts.1.w3.scale"
TABLE = "layers.0.ffn.gate.tid2eid"


@pytest.mark.parametrize(
    ("name", "index", "byte", "message"),
    [
        (WKV, 3, 255, r"must hold numbers; got NaN, 255, for block \[1, 1\]"),
        (W3, 0, 255, r"must hold numbers; got NaN, 255, for block \[0, 0\]"),
        ("layers.1.attn.wo_a.weight", 9, 0x7F, "must hold finite values.* row 0, column 9"),
        ("head.weight", 3, 0x7F, None),
        ("norm.weight", 3, 0x7F, None),
        (TABLE, 8, 2, "must hold expert ids 0 to 1; got 2 for token 0"),
        (TABLE, 7, 0x80, r"must hold expert ids 0 to 1; got -\d+ for token 0"),
        (TABLE, 4, 1, r"must hold expert ids 0 to 1; got 429496729\d for token 0"),
    ],
)
def test_values_that_are_no_weights_leave_nothing(
    name: str, index: int, byte: int, message: str | None, small: Released, tmp_path: Path
):
    tensor = changed(small.stored[name], index, byte)
    if message is None:  # an infinity takes both bytes
        tensor = changed(tensor, index - 1, 0x80)
        message = "must hold finite values; got another one in row 0, column 1"
    folder = replace(small, stored=small.stored | {name: tensor}).write(tmp_path / "checkpoint")
    error = refused(folder, TensorError, rf"\.safetensors: {name} .*{message}")
    assert error.wrong[0].endswith(name)


def test_every_truncation_of_a_shard_is_named(folder: Path):
    shard = folder / SHARD
    whole = shard.read_bytes()
    for n_bytes in (0, 4, 8, 9, 500, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:n_bytes])
        refused(folder, FileFormatError, rf"{SHARD}: .*must")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"a": 3}',
        b'{"a": {"dtype": "F32"}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": []}}',
        b'{"a": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-99, -95]}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_damaged_header_is_named(header: bytes, folder: Path):
    (folder / SHARD).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    refused(folder, FileFormatError, rf"{SHARD}: (must be a safetensors file|a: .*must)")


def test_files_that_are_not_there(folder: Path, tmp_path: Path):
    (folder / SHARD).unlink()
    refused(folder, FileFormatError, rf"{INDEX}: its files must lie beside it; missing: {SHARD}")
    (folder / INDEX).unlink()
    refused(folder, FileFormatError, f"must hold {INDEX} or model.safetensors; got neither")
    for name in ("tokenizer.json", "config.json"):
        (folder / name).unlink()
        assert refused(folder, FileNotFoundError, name).filename == str(folder / name)
    refused(tmp_path / "nowhere", FileNotFoundError, "nowhere")
    with pytest.raises(FileFormatError, match="must be the folder of a checkpoint; got a file"):
        convert(Path(__file__), tmp_path / "out.gguf")
    with pytest.raises(ValueError, match="dense must be q8_0 or bf16; got 'q4_0'"):
        convert(folder, tmp_path / "out.gguf", dense="q4_0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "must be a JSON object; got list"),
        ("{}", "weight_map must be an object"),
        ('{"weight_map": {"norm.weight": "../x.safetensors"}}', r"a file beside it; got '\.\./x"),
        ('{"weight_map": {"norm.weight": 3}}', "norm.weight must be in a file beside it; got 3"),
        (json.dumps({"weight_map": {"lost": SHARD}}), f"missing: lost in {SHARD}"),
    ],
)
def test_a_damaged_index_is_named(content: str, message: str, folder: Path):
    (folder / INDEX).write_text(content)
    refused(folder, FileFormatError, rf"{INDEX}: .*{message}")


@pytest.mark.parametrize("key", sorted(config_json(make_released().config)))
def test_every_key_is_read_or_of_no_account(key: str, small: Released, folder: Path):
    unread = ("architectures", "bos_token_id", "eos_token_id", "expert_dtype", "topk_method")
    unread += ("attention_bias", "hidden_act", "quantization_config", "tie_word_embeddings")
    content = config_json(small.config)
    del content[key]
    (folder / "config.json").write_text(json.dumps(content))
    if key in (*unread, "num_nextn_predict_layers", "torch_dtype"):
        convert(folder, folder.parent / "out.gguf")
    elif key == "model_type":
        refused(folder, UnsupportedModelError, "model_type must be 'deepseek_v4'; got None")
    else:
        refused(folder, ConfigError, rf"config\.json: {key}\S* must be .*; got no such key")


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("model_type", "deepseek_v3", UnsupportedModelError, "'deepseek_v4'; got 'deepseek_v3'"),
        ("hidden_size", "160", ConfigError, "hidden_size must be an integer; got '160'"),
        ("hidden_size", 0, ConfigError, "hidden_size must be positive; got 0"),
        ("hidden_size", 128, TensorError, r"must be \[512, 128\]; got \[512, 160\]"),
        ("compress_ratios", [0], ConfigError, "compress_ratios must be an array of at least 2"),
        ("compress_ratios", [0, 5, 0], ConfigError, r"compress_ratios\[1\] must be 0, 4 or 128"),
        ("num_hidden_layers", 10**12, ConfigError, "compress_ratios must be an array of at least"),
        ("scoring_func", "sigmoid", ConfigError, "scoring_func must be 'sqrtsoftplus'"),
        ("n_shared_experts", 2, ConfigError, "n_shared_experts must be 1; got 2"),
        ("attention_bias", True, ConfigError, "attention_bias must be absent or False; got True"),
        ("swiglu_limit", -1.0, ConfigError, "swiglu_limit must be positive and finite; got -1.0"),
        ("n_routed_experts", 0, ConfigError, "n_routed_experts must be positive; got 0"),
        ("swiglu_limit", None, ConfigError, "swiglu_limit must be .*; got no such key"),
        ("rms_norm_eps", 10**400, ConfigError, r"config\.json: "),
        ("quantization_config", {"weight_block_size": [64, 64]}, ConfigError, "weight_block_size"),
        (
            "rope_scaling",
            {"type": "yarn", "factor": 16, "mscale": 0.7},
            ConfigError,
            r"rope_scaling\.mscale must be absent or 1\.0; got 0\.7",
        ),
    ],
)
def test_numbers_out_of_range_are_named(
    key: str, value: object, error: type[Exception], message: str, small: Released, tmp_path: Path
):
    refused(small.write(tmp_path / "checkpoint", **{key: value}), error, message)


def test_another_model_is_named(folder: Path):
    message = "DeepSeek-V4.1 is another architecture"
    refused(folder, UnsupportedModelError, message, name="DeepSeek-V4.1-Flash")


def test_too_little_room_is_said_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    used = shutil.disk_usage(folder)._replace(free=1000)
    monkeypatch.setattr("mlx_dsv4.checkpoint.conversion.shutil.disk_usage", lambda _: used)
    monkeypatch.setattr("mlx_dsv4.checkpoint.conversion._write", lambda *_: pytest.fail("written"))
    error = refused(folder, OSError, r"room for \d+ bytes; 1000 are free")
    assert error.errno == errno.ENOSPC
    assert error.filename == str(folder.parent / "out.gguf")


def test_a_failing_disk_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("mlx_dsv4.checkpoint.conversion.os.fsync", fail)
    assert refused(folder, OSError, "Input/output").filename == str(folder.parent / "out.gguf")


def test_an_interrupt_leaves_nothing(folder: Path):
    out = folder.parent / "out.gguf"
    out.write_bytes(b"precious")

    def interrupt(done: int, total: int) -> None:
        assert Path(f"{out}.unfinished").stat().st_size >= total
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(folder, out, on_progress=interrupt)
    assert out.read_bytes() == b"precious"
    assert not Path(f"{out}.unfinished").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_program_leaves_nothing(
    number: signal.Signals, code: int, small: Released, tmp_path: Path
):
    folder = small.write(tmp_path / "checkpoint")
    # The program takes a second per tensor: the signal comes while it writes.
    slow = (
        "import time, sys\n"
        "from mlx_dsv4.checkpoint import plan\n"
        "from mlx_dsv4 import cli\n"
        "data = plan.Target.data\n"
        "def slowly(self):\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(1)\n"
        "    return data(self)\n"
        "plan.Target.data = slowly\n"
        "cli.main()\n"
    )
    out = tmp_path / "out.gguf"
    arguments = [sys.executable, "-c", slow, "convert", str(folder), str(out)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        assert Path(f"{out}.unfinished").exists()
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert b"Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_what_a_killed_program_left_is_replaced(folder: Path):
    out = folder.parent / "out.gguf"
    Path(f"{out}.unfinished").write_bytes(b"x" * 100_000_000)
    convert(folder, out)
    assert out.stat().st_size < 100_000_000
    assert not Path(f"{out}.unfinished").exists()
