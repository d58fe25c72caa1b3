"""Small random models and prompts with what the NumPy model makes of them."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from agreement import largest_difference
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.tiny import TWICE_TOKEN, random_weights, tiny_config
from mlx_dsv4.reference.model import Trace, forward

SMALL = {"hidden": 128, "q_rank": 64, "output_rank": 32, "expert_hidden": 64, "vocab": 512}
TOKENS = 310

# At 310 tokens each selects for real and has two ratio-128 rows; the last layer is scored.
CONFIGS = {
    "every-kind-of-layer": SMALL
    | {"heads": 4, "head_dim": 192, "ratios": (0, 4, 128, 4, 128), "top_k": 8, "hash_layers": 1},
    "no-hash-layer": SMALL
    | {"heads": 4, "head_dim": 96, "ratios": (4, 128, 4), "top_k": 4}
    | {"experts": 16, "experts_used": 4, "hash_layers": 0, "indexer_dim": 64, "rope_dim": 32},
    # YaRN's original context is short, so that its ramp matters at these positions.
    "other-numbers": SMALL
    | {"heads": 8, "head_dim": 160, "ratios": (0, 0, 4, 128), "top_k": 24}
    | {"output_groups": 1, "yarn_original_context": 512, "yarn_factor": 4.0}
    | {"sinkhorn_iterations": 5, "expert_scale": 2.5, "hyper_eps": 1e-3, "norm_eps": 1e-3},
}


@dataclass(frozen=True)
class Case:
    """A model, a prompt, and the NumPy model's logits and trace."""

    config: ModelConfig
    weights: dict[str, np.ndarray]
    tokens: np.ndarray
    logits: np.ndarray
    trace: Trace

    def difference(self, theirs: np.ndarray) -> float:
        return largest_difference(self.logits, theirs, self.trace.margin())


def make_tokens(config: ModelConfig, n: int) -> np.ndarray:
    """Ids of the whole vocabulary; the token whose hash experts repeat stands in the middle."""
    tokens = np.random.default_rng(1).integers(0, config.vocab, n)
    tokens[n // 2] = TWICE_TOKEN
    return tokens


@cache
def make_case(name: str, numerics: str = "plain") -> Case:
    """One of :data:`CONFIGS`, with float32 rows."""
    config = tiny_config(**CONFIGS[name])
    weights, tokens = random_weights(config, seed=3), make_tokens(config, TOKENS)
    logits, trace = forward(config, weights, tokens, numerics=numerics, dtype="float32", trace=True)
    return Case(config, weights, tokens, logits, trace)
