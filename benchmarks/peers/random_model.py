"""The default model of the comparison: V4-Flash at a quarter of its widths, with random weights.

    python -m benchmarks.peers.random_model FILE

Ratios, rotation, window, selection, streams and numbers of experts used are those of V4-Flash.
head_dim stays 512: llama.cpp does not survive one that equals indexer_dim.
"""

import sys
from dataclasses import replace
from pathlib import Path

from mlx_dsv4.config import V4_FLASH, ModelConfig
from mlx_dsv4.gguf.tiny import Formats, random_weights, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary

LAYERS = 8
EXPERTS = 36
SEED = 0
FORMATS = Formats(dense="q8_0", experts="mxfp4", embedding="q8_0", output="q8_0")
CONFIG: ModelConfig = replace(
    V4_FLASH,
    name="random V4-Flash, quarter width",
    vocab=4096,
    layers=LAYERS,
    hidden=V4_FLASH.hidden // 4,
    heads=V4_FLASH.heads // 4,
    q_rank=V4_FLASH.q_rank // 4,
    output_rank=V4_FLASH.output_rank // 4,
    indexer_heads=V4_FLASH.indexer_heads // 4,
    expert_hidden=V4_FLASH.expert_hidden // 4,
    experts=(EXPERTS,) * LAYERS,
    ratios=V4_FLASH.ratios[:LAYERS],
    clamp=V4_FLASH.clamp[:LAYERS],
    clamp_shared=V4_FLASH.clamp_shared[:LAYERS],
)


def make(path: Path) -> None:
    """Write the model: 545 million parameters, 345 MB; takes 2.5 GB and half a minute."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_model(path, CONFIG, random_weights(CONFIG, SEED), FORMATS, make_vocabulary(CONFIG.vocab))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
