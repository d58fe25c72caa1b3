"""Small models on disk, made once."""

from pathlib import Path

import pytest

from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.tiny import Formats, random_weights, tiny_config, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary


@pytest.fixture(scope="session")
def small_config() -> ModelConfig:
    """Every kind of layer at dimensions that write and read in milliseconds."""
    return tiny_config(
        **{"vocab": 300, "hidden": 32, "heads": 2, "head_dim": 64, "rope_dim": 32, "q_rank": 32},
        **{"output_rank": 32, "output_groups": 2, "experts": 4, "expert_hidden": 32},
        **{"indexer_heads": 2, "indexer_dim": 32, "ratios": (0, 4, 128), "hash_layers": 1},
    )


@pytest.fixture(scope="session")
def small_model(small_config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    formats = Formats(dense="q8_0", experts="mxfp4", embedding="f16", output="bf16")
    write_model(path, small_config, random_weights(small_config, 0), formats, make_vocabulary(300))
    return path
