"""Checkpoints as DeepSeek releases them, safetensors files of FP8 and FP4, turned into GGUF."""

from mlx_dsv4.checkpoint.conversion import DENSE_FORMATS, Conversion, convert

__all__ = ["DENSE_FORMATS", "Conversion", "convert"]
