"""A GGUF file with V4-Flash's tensors whose weights are holes: zeros that take no disk."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.config import V4_FLASH, ModelConfig
from mlx_dsv4.gguf.metadata import write_header
from mlx_dsv4.gguf.names import expected_tensors
from mlx_dsv4.gguf.random_rows import random_rows
from mlx_dsv4.gguf.reader import GGUFFile, TensorInfo
from mlx_dsv4.gguf.vocabulary import NORMAL, Vocabulary, make_vocabulary
from mlx_dsv4.paths import followed, naming, usable_path

# The formats of the 80.8 GiB file that most people download, by the end of a name; the first match.
FORMATS = {
    r"tid2eid\.weight": "i32",
    r"ffn_(gate|up)_exps\.weight": "iq2_xxs",
    r"ffn_down_exps\.weight": "q2_k",
    r"(norm|sinks|base|scale)\.weight": "f32",
    r"exp_probs_b\.bias": "f32",
    r"(hc_\w*fn|ffn_gate_inp|token_embd)\.weight": "f16",
    r"(compressor_\w+|indexer\.\w+)\.weight": "f16",
    r"": "q8_0",
}
RANDOM_ROWS = 100  # at the end of a matrix that is not all holes


def format_of(name: str) -> str:
    """The format of a tensor in the common file."""
    return next(format for end, format in FORMATS.items() if re.search(f"{end}$", name))


def write_full_size(path: str | os.PathLike[str], config: ModelConfig = V4_FLASH) -> None:
    """Write a sparse file with every tensor of a model, in place of what is there or linked to.

    Norms are ones, expert ids and the last 100 rows of ``token_embd.weight``, ``output.weight`` and
    of the last layer's experts are random; all other weights are zeros.

    Args:
        path: Of the file, on a file system that has holes.
        config: Numbers of the model.

    Raises:
        OSError: the file cannot be written.
    """
    path = followed(usable_path(path))
    unfinished = Path(f"{path}.unfinished")
    try:
        formats = {name: format_of(name) for name in expected_tensors(config)}
        with naming(path):
            write_header(unfinished, config, _vocabulary(config.vocab), formats)
            _write_contents(unfinished, config)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_contents(path: Path, config: ModelConfig) -> None:
    with GGUFFile(path) as file, path.open("r+b") as out:
        for info in file.tensors.values():
            data = _contents(info, config)
            out.seek(info.offset + info.n_bytes - data.nbytes)
            out.write(data.tobytes())


def _vocabulary(size: int) -> Vocabulary:
    """A small vocabulary, and words that no text is cut into."""
    small = make_vocabulary(1024)
    n_more = size - len(small.tokens)
    words = tuple(f"word{number}" for number in range(n_more))
    return replace(small, tokens=small.tokens + words, types=small.types + (NORMAL,) * n_more)


def _contents(info: TensorInfo, config: ModelConfig) -> NDArray[np.generic]:
    """What is written at the end of a tensor."""
    rng = np.random.default_rng(len(info.name))
    if info.format == "i32":
        return rng.integers(0, min(config.experts), info.shape, np.int32)
    if "norm" in info.name:
        return np.ones(info.shape, np.float32)
    last = f"blk.{config.layers - 1}.ffn_"
    if info.name in ("token_embd.weight", "output.weight") or (
        info.name.startswith(last) and "_exps" in info.name
    ):
        return random_rows((RANDOM_ROWS, info.shape[-1]), info.format, std=0.02)
    return np.zeros(0, np.uint8)
