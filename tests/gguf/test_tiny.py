"""Tiny models: what is written is what is read, in every format, with weights that matter."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import gguf
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import ConfigError, UnsupportedModelError
from mlx_dsv4.gguf import GGUFFile, check_tensors, dequantize, expected_tensors
from mlx_dsv4.gguf.blocks import WRITABLE
from mlx_dsv4.gguf.full_size import write_full_size
from mlx_dsv4.gguf.names import check_expert_ids
from mlx_dsv4.gguf.tiny import (
    TWICE_TOKEN,
    Formats,
    quantize,
    random_weights,
    tiny_config,
    write_model,
)
from mlx_dsv4.gguf.vocabulary import make_vocabulary

GROUPS = {
    "dense": "blk.0.attn_q_a.weight",
    "experts": "blk.2.ffn_down_exps.weight",
    "embedding": "token_embd.weight",
    "output": "output.weight",
    "router": "blk.1.ffn_gate_inp.weight",
    "elementwise": "blk.1.attn_compressor_ape.weight",
}


@pytest.fixture(scope="module")
def weights(small_config):
    return random_weights(small_config, 3)


def test_default_has_every_kind_of_layer():
    config = tiny_config()
    assert config.ratios == (0, 0, 4, 128, 4, 128)
    assert 0 < config.hash_layers < config.layers
    assert config.indexer_heads >= 16
    # llama.cpp cannot tell heads and index rows of one size apart
    assert config.head_dim != config.indexer_dim
    # selection happens within a few hundred tokens
    assert config.top_k * 4 < 100


def test_overrides_are_checked():
    assert tiny_config(ratios=(0, 0)).layers == 2
    with pytest.raises(ConfigError, match="hash_layers must be at most layers = 1; got 2"):
        tiny_config(ratios=(0,))


def test_weights_are_those_the_config_needs(small_config, weights):
    specs = expected_tensors(small_config)
    assert weights.keys() == specs.keys()
    for name, spec in specs.items():
        assert weights[name].shape == spec.shape
        assert weights[name].dtype == (np.int32 if spec.role == "ids" else np.float32)
        assert spec.shape == (1,) or np.unique(weights[name]).size > 1, name


def test_a_seed_gives_its_weights(small_config, weights):
    again, other = random_weights(small_config, 3), random_weights(small_config, 4)
    for name, array in weights.items():
        assert np.array_equal(array, again[name])
        assert not np.array_equal(array, other[name])


def test_tensors_of_one_shape_differ(weights):
    gate, up = (weights[f"blk.0.ffn_{part}_exps.weight"] for part in ("gate", "up"))
    correlation = np.corrcoef(gate.ravel(), up.ravel())[0, 1]
    # five standard deviations of the correlation of independent samples
    assert abs(correlation) < 5 / gate.size**0.5


def test_expert_tables_name_experts_once_but_for_one_token(small_config, weights):
    table = weights["blk.0.ffn_gate_tid2eid.weight"]
    check_expert_ids("table", table, small_config.experts[0])
    repeated = [token for token, row in enumerate(table) if len(set(row)) < len(row)]
    assert repeated == [TWICE_TOKEN]


@pytest.mark.parametrize("format", WRITABLE)
@pytest.mark.parametrize("group", GROUPS)
def test_each_group_is_stored_in_its_format(group, format, small_config, weights, tmp_path):
    path = tmp_path / "model.gguf"
    write_model(path, small_config, weights, Formats(**{group: format}), make_vocabulary(300))
    kind = gguf.GGMLQuantizationType[format.upper()]
    with GGUFFile(path) as file:
        check_tensors(small_config, file.tensors)
        for member, name in GROUPS.items():
            info = file.tensors[name]
            assert info.format == (format if member == group else "f32"), name
            stored = dequantize(file.raw(name), info.format, info.shape)
            if member == group:
                packed = gguf.quantize(weights[name], kind)
                assert np.array_equal(stored, gguf.dequantize(packed, kind))
            else:
                assert np.array_equal(stored, weights[name])
        table = "blk.0.ffn_gate_tid2eid.weight"
        assert file.tensors[table].format == "i32"
        ids = file.raw(table).view(np.int32).reshape(file.tensors[table].shape)
        assert np.array_equal(ids, weights[table])


def test_rows_that_are_no_whole_blocks_stay_float32(small_config, weights, tmp_path):
    path = tmp_path / "model.gguf"
    formats = Formats(**{field.name: "q8_0" for field in fields(Formats)})
    write_model(path, small_config, weights, formats, make_vocabulary(300))
    with GGUFFile(path) as file:
        for name, info in file.tensors.items():
            whole = info.shape[-1] % 32 == 0
            assert info.format == ("q8_0" if whole else "f32") or "tid2eid" in name


def test_metadata_is_llama_cpps_and_gives_the_config_back(small_model, small_config):
    with GGUFFile(small_model) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        found = ModelConfig.from_metadata(file.metadata, shapes)
        assert "deepseek4.vocab_size" not in file.metadata
        assert file.metadata["deepseek4.embedding_length_out"] == 4 * small_config.hidden
        assert file.metadata["deepseek4.attention.compress_ratios"] == [*small_config.ratios, 0]
        assert file.metadata["tokenizer.ggml.model"] == "gpt2"
        assert file.metadata["tokenizer.ggml.pre"] == "joyai-llm"
        assert file.metadata["tokenizer.ggml.tokens"] == list(make_vocabulary(300).tokens)
        assert file.metadata["tokenizer.ggml.merges"] == list(make_vocabulary(300).merges)
        assert file.metadata["tokenizer.ggml.token_type"] == list(make_vocabulary(300).types)
        ids = [file.metadata[f"tokenizer.ggml.{k}_token_id"] for k in ("bos", "eos", "padding")]
        assert ids == [0, 1, 2]
    # GGUF stores these as float32
    for field in ("norm_eps", "hyper_eps"):
        found = replace(found, **{field: round(getattr(found, field), 9)})
    assert found == small_config


def test_an_existing_file_is_replaced(small_config, weights, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 10_000_000)
    write_model(path, small_config, weights, Formats(), make_vocabulary(300))
    with GGUFFile(path) as file:
        check_tensors(small_config, file.tensors)
        assert file.n_bytes < 10_000_000


def test_mistakes_are_named_before_a_file_exists(small_config, weights, tmp_path):
    path, vocabulary = tmp_path / "model.gguf", make_vocabulary(300)
    with pytest.raises(ValueError, match="vocabulary must have 300 tokens; got 301"):
        write_model(path, small_config, weights, Formats(), make_vocabulary(301))
    fewer = {k: v for k, v in weights.items() if k != "output.weight"}
    with pytest.raises(ValueError, match=r"differing: \['output\.weight'\]"):
        write_model(path, small_config, fewer, Formats(), vocabulary)
    flat = weights | {"output.weight": weights["output.weight"].reshape(-1)}
    with pytest.raises(ValueError, match=r"output\.weight must be \[300, 32\]; got \[9600\]"):
        write_model(path, small_config, flat, Formats(), vocabulary)
    with pytest.raises(UnsupportedModelError, match="mxfp4 or i32; got 'q4_0'"):
        write_model(path, small_config, weights, Formats(dense="q4_0"), vocabulary)
    assert not path.exists()


def test_quantize_keeps_the_bytes_of_numbers():
    ids = np.array([[1, -1]], np.int32)
    assert quantize(ids, "i32").view(np.int32).tolist() == [[1, -1]]
    values = np.array([[1.5, -2.0]], np.float32)
    assert quantize(values, "f32").view(np.float32).tolist() == [[1.5, -2.0]]
    assert quantize(values.T, "f16").view(np.float16).ravel().tolist() == [1.5, -2.0]


def test_a_sparse_file_of_a_small_model_runs(tmp_path: Path) -> None:
    config = tiny_config(
        **{"vocab": 1100, "hidden": 256, "q_rank": 256, "output_rank": 64, "expert_hidden": 256},
        **{"head_dim": 192, "ratios": (4, 128), "hash_layers": 1},
    )
    path = tmp_path / "sparse.gguf"
    write_full_size(path, config)
    with GGUFFile(path) as file:
        check_tensors(config, file.tensors)
        formats = {info.format for info in file.tensors.values()}
    assert formats == {"f32", "f16", "q8_0", "iq2_xxs", "q2_k", "i32"}
