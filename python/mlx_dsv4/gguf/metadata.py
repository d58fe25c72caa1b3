"""Writing what comes before the weights: a model's numbers, its vocabulary, its tensor table."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import gguf
from mlx_dsv4.config import ARCHITECTURES, KEYS, REQUIRED_VALUES, ModelConfig
from mlx_dsv4.gguf.blocks import n_bytes_of
from mlx_dsv4.gguf.names import expected_tensors
from mlx_dsv4.gguf.vocabulary import BOS, EOS, PAD, Vocabulary


def write_header(
    path: str | os.PathLike[str],
    config: ModelConfig,
    vocabulary: Vocabulary,
    formats: Mapping[str, str],
) -> None:
    """Write a GGUF file whose tensors are a hole: zeros that take no disk.

    Args:
        path: Of the file, on a file system that has holes; an existing one is replaced.
        config: Numbers of the model.
        vocabulary: The tokenizer's arrays, with DeepSeek's begin, end and padding.
        formats: Block format of each of :func:`expected_tensors`.

    Raises:
        OSError: the file cannot be written.
    """
    writer = gguf.GGUFWriter(path, ARCHITECTURES[0])
    add_config(writer, config)
    add_vocabulary(writer, vocabulary)
    n_bytes = 0
    for name, spec in expected_tensors(config).items():
        kind = gguf.GGMLQuantizationType[formats[name].upper()]
        size = n_bytes_of(formats[name], spec.shape)
        writer.add_tensor_info(name, spec.shape, np.dtype(np.float32), size, raw_dtype=kind)
        n_bytes += writer.ggml_pad(size, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with Path(path).open("r+b") as file:
        header = writer.ggml_pad(Path(path).stat().st_size, writer.data_alignment)
        file.truncate(header + n_bytes)


def add_config(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """Give a file the keys of llama.cpp's dialect that hold a model's numbers."""
    writer.add_type("model")
    writer.add_name(config.name)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    derived = {
        "attention.value_length": config.head_dim,
        "embedding_length_out": config.hidden * config.streams,
    }
    # Real files carry a ratio for the draft layer too, and count rows instead of naming `vocab`.
    own = {suffix: getattr(config, field) for field, suffix in KEYS.items() if field != "vocab"}
    own[KEYS["ratios"]] = [*config.ratios, 0]
    own[KEYS["experts"]] = max(config.experts)
    for suffix, value in (own | derived | REQUIRED_VALUES).items():
        key = f"{ARCHITECTURES[0]}.{suffix}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, list(value))


def add_vocabulary(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    """Give a file the tokenizer's arrays.

    Raises:
        ValueError: begin, end or padding is no token of the vocabulary.
    """
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("joyai-llm")
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.types))
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(vocabulary.id_of(BOS))
    writer.add_eos_token_id(vocabulary.id_of(EOS))
    writer.add_pad_token_id(vocabulary.id_of(PAD))
    writer.add_add_bos_token(False)
