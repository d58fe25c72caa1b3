"""A small model of the real architecture with random weights, written as a GGUF file."""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gguf
from mlx_dsv4.config import ARCHITECTURES, ModelConfig
from mlx_dsv4.gguf.blocks import block_shape, quantize
from mlx_dsv4.gguf.metadata import add_config, add_vocabulary
from mlx_dsv4.gguf.names import TensorSpec, expected_tensors
from mlx_dsv4.gguf.vocabulary import Vocabulary
from mlx_dsv4.paths import followed, usable_path

Weights = dict[str, NDArray[Any]]

# Of the hash layers' tables: this token names one expert twice.
TWICE_TOKEN = 7

_CLAMP = 2.5
_LOGIT_STD = 3.0


@dataclass(frozen=True, slots=True)
class Formats:
    """The block format of each group of tensors, one of :data:`WRITABLE`.

    ``dense`` are all matrices that no other group names, ``mixing`` those of hyper-connections. A
    tensor whose rows are no whole number of blocks is stored as float32; expert ids are always
    int32.
    """

    dense: str = "f32"
    experts: str = "f32"
    embedding: str = "f32"
    output: str = "f32"
    router: str = "f32"
    elementwise: str = "f32"
    mixing: str | None = None

    def of(self, name: str, spec: TensorSpec) -> str:
        """The format in which one tensor is written."""
        if spec.role == "ids":
            return "i32"
        if spec.role == "elementwise":
            is_mixing = "hc_" in name and name.endswith("_fn.weight")
            chosen = (self.mixing if is_mixing else None) or self.elementwise
        elif name.endswith("_exps.weight"):
            chosen = self.experts
        elif name.endswith(".ffn_gate_inp.weight"):
            chosen = self.router
        else:
            groups = {"token_embd.weight": self.embedding, "output.weight": self.output}
            chosen = groups.get(name, self.dense)
        elements, _ = block_shape(chosen)
        return chosen if spec.shape[-1] % elements == 0 else "f32"


def tiny_config(**overrides: Any) -> ModelConfig:
    """A configuration with every kind of layer that runs on a laptop's CPU.

    The clamps are low enough to act on some activations of every token. ``layers`` follows from
    ``ratios`` unless it is given, and so do the clamps' lengths; one number of ``experts`` is that
    of all layers.

    Args:
        overrides: Fields of :class:`mlx_dsv4.config.ModelConfig`.

    Raises:
        ConfigError: the overrides break a rule.
    """
    fields: dict[str, Any] = {
        **{"name": "DeepSeek-V4 tiny", "context": 4096, "vocab": 1024, "hidden": 256},
        **{"heads": 8, "head_dim": 192, "q_rank": 128, "output_rank": 64, "output_groups": 4},
        **{"window": 128, "ratios": (0, 0, 4, 128, 4, 128)},
        **{"rope_dim": 64, "rope_base": 10_000.0, "compress_rope_base": 160_000.0},
        **{"yarn_factor": 16.0, "yarn_original_context": 65_536},
        **{"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0},
        **{"indexer_heads": 16, "indexer_dim": 128, "top_k": 16, "norm_eps": 1e-6},
        **{"experts": 8, "experts_used": 2, "expert_hidden": 128, "expert_scale": 1.5},
        **{"streams": 4, "sinkhorn_iterations": 20, "hyper_eps": 1e-6, "hash_layers": 2},
    }
    fields |= overrides
    layers = fields.setdefault("layers", len(fields["ratios"]))
    if isinstance(fields["experts"], int):
        fields["experts"] = (fields["experts"],) * layers
    fields.setdefault("clamp", (_CLAMP,) * layers)
    fields.setdefault("clamp_shared", (_CLAMP,) * layers)
    return ModelConfig(**fields)


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Weights under which every part of the model changes the logits.

    Projections keep the variance of what they read, so that activations stay near 1, the
    residual streams near the embedding, and the logits near a standard deviation of 3.
    Compressor gates, sinks, biases and ``ape`` are large enough to matter. In the tables of the
    hash layers, token :data:`TWICE_TOKEN` names one expert twice.

    Args:
        config: Its vocabulary is longer than :data:`TWICE_TOKEN`.
        seed: The same seed gives the same weights, tensor by tensor.

    Returns:
        GGUF name to float32 or int32 array, outer dimension first.
    """
    weights: Weights = {}
    for index, (name, spec) in enumerate(expected_tensors(config).items()):
        rng = np.random.default_rng((seed, index))
        if spec.role == "ids":
            weights[name] = _expert_table(rng, spec.shape, config.experts[int(name.split(".")[1])])
            continue
        mean, spread = _distribution(name, spec)
        weights[name] = (mean + spread * rng.standard_normal(spec.shape)).astype(np.float32)
    return weights


def _distribution(name: str, spec: TensorSpec) -> tuple[float, float]:
    """Mean and standard deviation of a tensor's values."""
    part = name.rsplit(".", 1)[0].split(".", 2)[-1] if name.startswith("blk.") else name[:-7]
    fan_in = float(spec.shape[-1]) ** -0.5
    if part == "attn_compressor_norm":
        # Louder than the window, whose many rows would drown them.
        return 1.5, 0.15
    if part.endswith("norm"):
        return 1.0, 0.1
    if part.endswith("_scale"):
        return 0.8, 0.2
    if part.endswith(("_base", "_ape", "_sinks")):
        return 0.0, 1.0
    if part == "exp_probs_b":
        return 0.0, 0.3
    if part == "token_embd":
        return 0.0, 1.0
    if part == "output":
        return 0.0, _LOGIT_STD * fan_in
    if part.endswith(("compressor_gate", "ffn_gate_inp")):
        return 0.0, 2.0 * fan_in
    return 0.0, fan_in


def _expert_table(
    rng: np.random.Generator, shape: tuple[int, ...], experts: int
) -> NDArray[np.int32]:
    ranks = rng.random((shape[0], experts)).argsort(axis=1)
    table = ranks[:, : shape[1]].astype(np.int32)
    table[TWICE_TOKEN, -1] = table[TWICE_TOKEN, 0]
    return table


def write_model(
    path: str | os.PathLike[str],
    config: ModelConfig,
    weights: Mapping[str, NDArray[Any]],
    formats: Formats,
    vocabulary: Vocabulary,
) -> None:
    """Write a GGUF file with the keys that llama.cpp writes and reads.

    Args:
        path: Of the file; an existing one is replaced, or that which it links to.
        config: Its ``vocab`` is the length of ``vocabulary``.
        weights: One array for each of :func:`expected_tensors`.
        formats: How to store them.
        vocabulary: The tokenizer's arrays.

    Raises:
        ValueError: the vocabulary or the weights are not those of the configuration.
    """
    specs = expected_tensors(config)
    if len(vocabulary.tokens) != config.vocab:
        raise ValueError(
            f"vocabulary must have {config.vocab} tokens; got {len(vocabulary.tokens)}"
        )
    if weights.keys() != specs.keys():
        differing = sorted(weights.keys() ^ specs.keys())
        raise ValueError(f"weights must be those of the configuration; differing: {differing}")
    for name, spec in specs.items():
        if weights[name].shape != spec.shape:
            raise ValueError(f"{name} must be {list(spec.shape)}; got {list(weights[name].shape)}")
    # A file that is mapped somewhere must not change under its reader, nor be half written.
    path = followed(usable_path(path))
    unfinished = f"{os.fspath(path)}.unfinished"
    writer = gguf.GGUFWriter(unfinished, ARCHITECTURES[0])
    add_config(writer, config)
    add_vocabulary(writer, vocabulary)
    for name, spec in specs.items():
        format = formats.of(name, spec)
        kind = gguf.GGMLQuantizationType[format.upper()]
        writer.add_tensor(name, quantize(weights[name], format), raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(unfinished, path)
    except OSError as error:
        # NumPy says how many bytes were written, and neither where nor why.
        reason = error.strerror or "could not be written whole: the disk may be full"
        raise OSError(error.errno or errno.ENOSPC, reason, os.fspath(path)) from error
    finally:
        Path(unfinished).unlink(missing_ok=True)
