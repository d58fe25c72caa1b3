"""Reading GGUF files: a mapped file, its block formats, and the tensors a model needs of it."""

from mlx_dsv4.gguf.blocks import PACKED, block_shape, dequantize
from mlx_dsv4.gguf.card import ModelCard, model_card
from mlx_dsv4.gguf.names import (
    TensorSpec,
    check_expert_ids,
    check_tensors,
    expected_tensors,
)
from mlx_dsv4.gguf.reader import GGUFFile, TensorInfo

__all__ = [
    "PACKED",
    "GGUFFile",
    "ModelCard",
    "TensorInfo",
    "TensorSpec",
    "block_shape",
    "check_expert_ids",
    "check_tensors",
    "dequantize",
    "expected_tensors",
    "model_card",
]
