"""Small models on disk, loaded, with their weights beside them: random ones, and a trained one."""

import atexit
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_dsv4 import DEMO_MODEL
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.gguf.tiny import Formats, random_weights, tiny_config, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary
from mlx_dsv4.model import Model, Numerics, load_weights
from mlx_dsv4.text import Tokenizer
from tools.decoded_tensors import decoded_tensors


@dataclass(frozen=True)
class TinyModel:
    """A file, and what its tensors decode to (by the ``gguf`` package)."""

    path: Path
    config: ModelConfig
    weights: dict[str, np.ndarray]

    def load(self, numerics: Numerics, device: mx.DeviceType = mx.cpu) -> Model:
        with GGUFFile(self.path) as file:
            return Model(load_weights(file), numerics=numerics, device=mx.Device(device, 0))


FLOAT32 = Formats()


@cache
def tiny_model(seed: int = 0, formats: Formats = FLOAT32, **overrides: Any) -> TinyModel:
    """Write a model once per test run; equal arguments give the same file."""
    config = tiny_config(**overrides)
    folder = mkdtemp(prefix="dsv4-")
    atexit.register(rmtree, folder, ignore_errors=True)
    path = Path(folder) / "tiny.gguf"
    weights = random_weights(config, seed)
    write_model(path, config, weights, formats, make_vocabulary(config.vocab))
    return TinyModel(path, config, decoded_tensors(path))


@cache
def demo_model() -> TinyModel:
    """The trained model that the package ships."""
    with GGUFFile(DEMO_MODEL) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config = ModelConfig.from_metadata(file.metadata, shapes)
    return TinyModel(DEMO_MODEL, config, decoded_tensors(DEMO_MODEL))


def demo_tokens(n: int) -> list[int]:
    """The first ids of a text like that which the demo model is trained on."""
    with GGUFFile(DEMO_MODEL) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    text = Path(__file__).with_name("demo_text.txt").read_text()
    return [tokenizer.bos_id, *tokenizer.encode(text)][:n]


def random_tokens(config: ModelConfig, n: int, seed: int = 0) -> list[int]:
    """Ids of the whole vocabulary, the token with a doubled hash expert among them."""
    tokens = np.random.default_rng(seed).integers(0, config.vocab, n)
    tokens[n // 2] = 7
    return [int(token) for token in tokens]
