"""A converted checkpoint is the model: its numbers, its weights to the bit, its logits."""

import json
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import gguf
from agreement import LOGIT_BOUND, largest_difference
from mlx_dsv4.checkpoint import convert
from mlx_dsv4.checkpoint.config import read_config
from mlx_dsv4.config import V4_FLASH, ModelConfig
from mlx_dsv4.gguf import GGUFFile, check_tensors, dequantize
from mlx_dsv4.gguf.tiny import Formats, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary
from mlx_dsv4.model import Model, load_weights
from mlx_dsv4.reference.model import forward
from released import Released, bf16, config_json, fp8, make_released, scale_of
from transformers_oracle import transformers_logits

Q8_0 = gguf.GGMLQuantizationType.Q8_0
FP8 = ("attn_q_a", "attn_q_b", "attn_kv", "attn_output_a", "attn_output_b", "shexp")
BF16 = ("token_embd", "output.weight", "_gate_inp", "compressor_kv", "compressor_gate", ".proj.")


def format_of(name: str, dense: str) -> str:
    if "_exps." in name:
        return "mxfp4"
    if "tid2eid" in name:
        return "i32"
    if any(part in name for part in FP8) and "norm" not in name:
        return dense
    return "bf16" if any(part in name for part in BF16) else "f32"


def values_of(path: Path) -> dict[str, np.ndarray]:
    with GGUFFile(path) as file:
        return {
            name: file.raw(name).view(np.int32).reshape(info.shape)
            if info.format == "i32"
            else dequantize(file.raw(name), info.format, info.shape)
            for name, info in file.tensors.items()
        }


def logits_of(path: Path, tokens: list[int]) -> np.ndarray:
    with GGUFFile(path) as file:
        model = Model(load_weights(file), numerics="plain", device=mx.Device(mx.cpu, 0))
    cache = model.make_cache(len(tokens), row_dtype="float32")
    return np.array(model.logits(model.prefill(tokens, cache)))


def config_of(path: Path) -> ModelConfig:
    with GGUFFile(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        return ModelConfig.from_metadata(file.metadata, shapes)


def test_every_value_survives_without_rounding(released: Released, exact: Path):
    found = values_of(exact)
    assert found.keys() == released.values.keys()
    for name, values in released.values.items():
        assert np.array_equal(found[name], values), name


def test_q8_0_is_that_of_the_gguf_package(released: Released, usual: Path):
    with GGUFFile(usual) as file:
        coded = [name for name, info in file.tensors.items() if info.format == "q8_0"]
        for name in coded:
            packed = gguf.quantize(released.values[name], Q8_0)
            assert file.raw(name).tobytes() == packed.tobytes(), name
        assert len(coded) == 8 * released.config.layers + 2  # two layers with an indexer


@pytest.mark.parametrize("dense", ["q8_0", "bf16"])
def test_each_tensor_has_the_format_of_its_source(dense: str, request: pytest.FixtureRequest):
    path = request.getfixturevalue({"q8_0": "usual", "bf16": "exact"}[dense])
    with GGUFFile(path) as file:
        for name, info in file.tensors.items():
            assert info.format == format_of(name, dense), name


def test_the_package_reads_the_file_too(released: Released, exact: Path):
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(exact).tensors}
    assert tensors.keys() == released.values.keys()
    for name, values in released.values.items():
        assert tuple(tensors[name].shape[::-1].tolist()) == values.shape


def test_the_config_comes_back(released: Released, usual: Path):
    found = config_of(usual)
    # GGUF stores these as float32
    for field in ("norm_eps", "hyper_eps"):
        found = replace(found, **{field: round(getattr(found, field), 9)})
    assert asdict(found) == asdict(released.config)


def test_the_published_config_is_v4_flash(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_json(V4_FLASH)))
    assert read_config(path, "DeepSeek-V4-Flash") == V4_FLASH


def test_logits_are_those_of_the_weights_written_directly(
    released: Released, exact: Path, tmp_path: Path
):
    direct = tmp_path / "direct.gguf"
    formats = Formats("bf16", "mxfp4", "bf16", "bf16", "bf16", "f32")
    vocabulary = make_vocabulary(released.config.vocab)
    write_model(direct, released.config, released.values, formats, vocabulary)
    tokens = np.random.default_rng(4).integers(0, released.config.vocab, 310).tolist()
    found = logits_of(exact, tokens)
    assert np.array_equal(found, logits_of(direct, tokens))
    assert found.std() > 1


@pytest.mark.oracle
def test_logits_are_those_of_transformers(released: Released, exact: Path):
    tokens = np.random.default_rng(5).integers(0, released.config.vocab, 310).tolist()
    theirs = transformers_logits(released.config, released.values, tokens)
    numerics = {"numerics": "plain", "dtype": "float32", "trace": True}
    _, trace = forward(released.config, released.values, np.array(tokens), **numerics)
    assert largest_difference(logits_of(exact, tokens), theirs, trace.margin()) < LOGIT_BOUND


def test_one_file_and_many_shards_are_one_model(released: Released, usual: Path, tmp_path: Path):
    folder = released.write(tmp_path / "checkpoint", shards=1)
    single = tmp_path / "single.gguf"
    done = convert(folder, single)
    assert single.read_bytes() == usual.read_bytes()
    assert done.n_tensors == len(released.values)
    assert done.n_bytes == single.stat().st_size
    assert done.ignored == ("layers.5.ffn_norm.weight", "mtp.0.attn.wq_a.weight")


def test_experts_may_be_fp8_or_bf16_too(tmp_path: Path):
    """As in a checkpoint before its experts are made FP4."""
    released = make_released(1, ratios=(0,), hash_layers=0, experts=3)
    stored = dict(released.stored)
    expected = {}
    for part, weight in (("gate", "w1"), ("down", "w2")):
        name, experts = f"blk.0.ffn_{part}_exps.weight", []
        for expert, matrix in enumerate(released.values[name]):
            own = f"layers.0.ffn.experts.{expert}.{weight}.weight"
            if part == "gate":
                stored[own], stored[scale_of(own)], values = fp8(matrix)
            else:
                stored[own], values = bf16(matrix)
                del stored[scale_of(own)]
            experts.append(values)
        expected[name] = np.stack(experts)
    folder = replace(released, stored=stored).write(tmp_path / "checkpoint")
    convert(folder, tmp_path / "x.gguf", dense="bf16")
    found = values_of(tmp_path / "x.gguf")
    for name, values in expected.items():
        assert np.array_equal(found[name], values), name


def test_memory_does_not_grow_with_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    small = {"expert_hidden": 32, "experts": 2, "ratios": (0,), "hash_layers": 0}
    released = make_released(6, hidden=1024, q_rank=1024, heads=16, vocab=2048, **small)
    folder = released.write(tmp_path / "checkpoint")
    monkeypatch.setattr("mlx_dsv4.checkpoint.encode.CHUNK_ELEMENTS", 1 << 14)
    tracemalloc.start()
    convert(folder, tmp_path / "x.gguf", dense="bf16")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The largest matrix takes 6.3 MB, the file 19 MB; most of the peak is the vocabulary.
    assert (tmp_path / "x.gguf").stat().st_size > 15e6
    assert peak < 5e6


def test_progress_ends_at_all_bytes(checkpoint: Path, tmp_path: Path):
    seen: list[tuple[int, int]] = []
    convert(checkpoint, tmp_path / "x.gguf", on_progress=lambda *now: seen.append(now))
    with GGUFFile(tmp_path / "x.gguf") as file:
        total = sum(info.n_bytes for info in file.tensors.values())
        check_tensors(config_of(tmp_path / "x.gguf"), file.tensors)
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    assert len(seen) > len(file.tensors)


def test_a_second_conversion_to_the_same_file_is_refused(tmp_path: Path):
    folder = make_released(1, ratios=(0,), hash_layers=0, experts=3).write(tmp_path / "checkpoint")
    out, alone = tmp_path / "out.gguf", tmp_path / "alone.gguf"
    convert(folder, alone)
    tried = []

    def meanwhile(done: int, total: int) -> None:
        if not tried:
            with pytest.raises(OSError, match=r"being written by another program: .*unfinished"):
                convert(folder, out)
            tried.append(done)

    convert(folder, out, on_progress=meanwhile)
    assert tried
    assert out.read_bytes() == alone.read_bytes()
    assert not Path(f"{out}.unfinished").exists()


def test_only_a_file_is_replaced(tmp_path: Path):
    folder = make_released(1, ratios=(0,), hash_layers=0, experts=3).write(tmp_path / "checkpoint")
    with pytest.raises(OSError, match="must be a file, to be replaced"):
        convert(folder, tmp_path)
