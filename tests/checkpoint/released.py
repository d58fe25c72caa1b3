"""Small checkpoints in the layout of DeepSeek's release, and the values that they stand for.

Names and stored types are those of ``tests/gguf/v4_flash_tensors.json``, FP8 and BF16 are torch's,
FP4 is encoded here.
"""

import json
import struct
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import official
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.tiny import random_weights, tiny_config
from mlx_dsv4.gguf.vocabulary import CONTROL, NORMAL, Vocabulary, make_vocabulary

TENSORS = Path(__file__).parents[1] / "gguf/v4_flash_tensors.json"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@dataclass(frozen=True)
class Stored:
    """A tensor as safetensors keep it: type, shape, and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Released:
    """A checkpoint in memory; :meth:`write` puts it on the disk.

    Args:
        config: Numbers of the model.
        values: GGUF name to what the tensor stands for, float32 or int32.
        stored: Name in the checkpoint to its bytes.
    """

    config: ModelConfig
    values: dict[str, np.ndarray] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)

    def write(self, folder: Path, shards: int = 3, **changes: object) -> Path:
        """Write every file of the checkpoint, with keys of ``config.json`` changed."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config_json(self.config) | changes))
        vocabulary = make_vocabulary(self.config.vocab)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(vocabulary)))
        write_shards(folder, self.stored, shards)
        return folder


def write_shards(folder: Path, stored: dict[str, Stored], shards: int) -> None:
    """Deal tensors out to files with an index, or write one file without."""
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(stored))
        return
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    places = {name: names[i % shards] for i, name in enumerate(stored)}
    for file in names:
        own = {name: tensor for name, tensor in stored.items() if places[name] == file}
        (folder / file).write_bytes(safetensors(own))
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def safetensors(stored: dict[str, Stored]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in stored.items():
        offsets = [end, end := end + len(tensor.data)]
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    data = b"".join(tensor.data for tensor in stored.values())
    return struct.pack("<Q", len(text)) + text + data


def config_json(config: ModelConfig) -> dict[str, Any]:
    """The published file's keys with a model's numbers; draft layers have a ratio too."""
    assert {*config.clamp, *config.clamp_shared} == {config.clamp[0]}
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "expert_dtype": "fp4",
        "hc_eps": config.hyper_eps,
        "hc_mult": config.streams,
        "hc_sinkhorn_iters": config.sinkhorn_iterations,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "index_head_dim": config.indexer_dim,
        "index_n_heads": config.indexer_heads,
        "index_topk": config.top_k,
        "max_position_embeddings": config.context,
        "model_type": "deepseek_v4",
        "moe_intermediate_size": config.expert_hidden,
        "n_routed_experts": config.experts[0],
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": config.heads,
        "num_experts_per_tok": config.experts_used,
        "num_hidden_layers": config.layers,
        "num_hash_layers": config.hash_layers,
        "num_key_value_heads": 1,
        "num_nextn_predict_layers": 1,
        "o_groups": config.output_groups,
        "o_lora_rank": config.output_rank,
        "q_lora_rank": config.q_rank,
        "qk_rope_head_dim": config.rope_dim,
        "quantization_config": {
            **{"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"},
            **{"scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
        },
        "rms_norm_eps": config.norm_eps,
        "rope_scaling": {
            "beta_fast": int(config.yarn_beta_fast),
            "beta_slow": int(config.yarn_beta_slow),
            "factor": int(config.yarn_factor),
            "original_max_position_embeddings": config.yarn_original_context,
            "type": "yarn",
        },
        "rope_theta": int(config.rope_base),
        "routed_scaling_factor": config.expert_scale,
        "scoring_func": "sqrtsoftplus",
        "sliding_window": config.window,
        "swiglu_limit": config.clamp[0],
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "vocab_size": config.vocab,
        "compress_rope_theta": int(config.compress_rope_base),
        "compress_ratios": [*config.ratios, 0],
    }


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """The official file with a small vocabulary in place of its own."""
    content = official.tokenizer_json()
    kinds = zip(vocabulary.tokens, vocabulary.types, strict=True)
    numbered = [(i, token, kind) for i, (token, kind) in enumerate(kinds)]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": i, "content": token, **flags, "special": kind == CONTROL}
        for i, token, kind in numbered
        if kind != NORMAL
    ]
    # Begin, end and padding are in the model's vocabulary too, as officially.
    ordinary = {token: i for i, token, kind in numbered if kind == NORMAL or i < 3}
    model = content["model"] | {"vocab": ordinary, "merges": list(vocabulary.merges)}
    return content | {"added_tokens": added, "model": model}


@cache
def make_released(seed: int = 0, **overrides: Any) -> Released:
    """A random model whose FP8 blocks are ragged in rows and in columns."""
    numbers: dict[str, Any] = {
        **{"hidden": 160, "q_rank": 96, "output_rank": 40, "expert_hidden": 96, "vocab": 512},
        **{"heads": 4, "head_dim": 192, "ratios": (0, 4, 128, 4, 128), "top_k": 8},
        **{"hash_layers": 1, "name": "checkpoint"},
    }
    released = Released(tiny_config(**(numbers | overrides)))
    weights = random_weights(released.config, seed)
    for row in json.loads(TENSORS.read_text()):
        for layer in range(released.config.layers) if row["layers"] else (0,):
            name = row["name"].replace("*", str(layer))
            if name in weights and name not in released.values:
                source = row["source"].replace("*", str(layer))
                _store(released, name, source, row["stored"], weights[name])
    assert released.values.keys() == weights.keys()
    for part in ("mtp.0.attn.wq_a.weight", f"layers.{released.config.layers}.ffn_norm.weight"):
        released.stored[part] = bf16(np.ones((4, 4), np.float32))[0]
    return released


def _store(released: Released, name: str, source: str, kind: str, weight: np.ndarray) -> None:
    stored = released.stored
    if kind == "fp4":
        experts = []
        for expert, matrix in enumerate(weight):
            own = source.replace("#", str(expert))
            stored[own], stored[scale_of(own)], values = fp4(matrix)
            experts.append(values)
        released.values[name] = np.stack(experts)
    elif kind == "fp8":
        stored[source], stored[scale_of(source)], released.values[name] = fp8(weight)
    elif kind == "bf16":
        stored[source], released.values[name] = bf16(weight)
    else:
        integers = kind == "int"
        array = np.ascontiguousarray(weight, np.int64 if integers else np.float32)
        stored[source] = Stored("I64" if integers else "F32", array.shape, array.tobytes())
        released.values[name] = weight


def scale_of(weight: str) -> str:
    return weight.replace(".weight", ".scale")


def fp8(matrix: np.ndarray) -> tuple[Stored, Stored, np.ndarray]:
    """Weights, scales and values of an FP8 matrix, rounded by torch."""
    rows, columns = matrix.shape
    codes, values = np.empty(matrix.shape, np.uint8), np.empty(matrix.shape, np.float32)
    scales = np.empty((-(-rows // 128), -(-columns // 128)), np.uint8)
    for i, j in np.ndindex(scales.shape):
        place = np.s_[128 * i : 128 * (i + 1), 128 * j : 128 * (j + 1)]
        exponent = int(np.ceil(np.log2(np.abs(matrix[place]).max() / 448)))
        block = torch.from_numpy(matrix[place] / np.float32(2.0**exponent))
        rounded = block.to(torch.float8_e4m3fn)
        codes[place] = rounded.view(torch.uint8).numpy()
        values[place] = rounded.float().numpy() * np.float32(2.0**exponent)
        scales[i, j] = exponent + 127
    weight = Stored("F8_E4M3", codes.shape, codes.tobytes())
    return weight, Stored("F8_E8M0", scales.shape, scales.tobytes()), values


def fp4(matrix: np.ndarray) -> tuple[Stored, Stored, np.ndarray]:
    """Weights, scales and values of an FP4 matrix, each rounded to the nearest code."""
    blocks = matrix.reshape(matrix.shape[0], -1, 32)
    exponents = np.ceil(np.log2(np.abs(blocks).max(-1, keepdims=True) / 6))
    scaled = blocks / np.exp2(exponents)
    codes = np.abs(scaled[..., None] - E2M1).argmin(-1).astype(np.uint8)
    values = (E2M1[codes] * np.exp2(exponents)).astype(np.float32).reshape(matrix.shape)
    codes = codes.reshape(matrix.shape)
    packed = codes[:, 0::2] + 16 * codes[:, 1::2]
    scales = (exponents[..., 0] + 127).astype(np.uint8)
    return (
        Stored("I8", packed.shape, packed.tobytes()),
        Stored("F8_E8M0", scales.shape, scales.tobytes()),
        values,
    )


def bf16(array: np.ndarray) -> tuple[Stored, np.ndarray]:
    rounded = torch.from_numpy(np.ascontiguousarray(array)).to(torch.bfloat16)
    data = rounded.view(torch.uint8).numpy().tobytes()
    return Stored("BF16", array.shape, data), rounded.float().numpy()
