"""The numbers of a model, from the ``config.json`` of its checkpoint."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlx_dsv4.checkpoint.shards import read_json
from mlx_dsv4.config import ModelConfig, check_rules, model_numbers
from mlx_dsv4.errors import ConfigError, UnsupportedModelError
from mlx_dsv4.typed_keys import TypedKeys

MODEL_TYPE = "deepseek_v4"

# Field of ModelConfig -> key of config.json; a dot leads into an object.
KEYS = {
    "context": "max_position_embeddings",
    "vocab": "vocab_size",
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "head_dim": "head_dim",
    "rope_dim": "qk_rope_head_dim",
    "rope_base": "rope_theta",
    "compress_rope_base": "compress_rope_theta",
    "yarn_factor": "rope_scaling.factor",
    "yarn_original_context": "rope_scaling.original_max_position_embeddings",
    "yarn_beta_fast": "rope_scaling.beta_fast",
    "yarn_beta_slow": "rope_scaling.beta_slow",
    "q_rank": "q_lora_rank",
    "output_rank": "o_lora_rank",
    "output_groups": "o_groups",
    "window": "sliding_window",
    "ratios": "compress_ratios",
    "indexer_heads": "index_n_heads",
    "indexer_dim": "index_head_dim",
    "top_k": "index_topk",
    "norm_eps": "rms_norm_eps",
    "experts": "n_routed_experts",
    "experts_used": "num_experts_per_tok",
    "expert_hidden": "moe_intermediate_size",
    "expert_scale": "routed_scaling_factor",
    "clamp": "swiglu_limit",
    "clamp_shared": "swiglu_limit",
    "streams": "hc_mult",
    "sinkhorn_iterations": "hc_sinkhorn_iters",
    "hyper_eps": "hc_eps",
    "hash_layers": "num_hash_layers",
}
# Keys without a field: this engine computes one value of each.
REQUIRED_VALUES: dict[str, object] = {
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "scoring_func": "sqrtsoftplus",
}
# The same for keys that may be absent; `mscale` would be an attention temperature.
OPTIONAL_VALUES: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "rope_scaling.type": "yarn",
    "rope_scaling.rope_type": "yarn",
    "rope_scaling.attention_factor": 1.0,
    "rope_scaling.mscale": 1.0,
    "rope_scaling.mscale_all_dim": 1.0,
    "quantization_config.quant_method": "fp8",
    "quantization_config.fmt": "e4m3",
    "quantization_config.weight_block_size": [128, 128],
}


def read_config(path: Path, name: str) -> ModelConfig:
    """Read the numbers of a checkpoint.

    Args:
        path: Of ``config.json``.
        name: Of the model: the file holds none.

    Raises:
        OSError: the file cannot be read.
        FileFormatError: it is no JSON object.
        UnsupportedModelError: another architecture.
        ConfigError: a key is missing, of the wrong type or out of range, or the name is no text.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the name of the model must be valid Unicode; got {name!r}") from None
    content = read_json(path)
    if content.get("model_type") != MODEL_TYPE:
        raise UnsupportedModelError(
            f"{path}: model_type must be {MODEL_TYPE!r}; got {content.get('model_type')!r}"
        )
    keys = TypedKeys(dict(_flatten(content)), "", KEYS)
    try:
        for key, wanted in REQUIRED_VALUES.items():
            keys.expect(key, wanted)
        for key, wanted in OPTIONAL_VALUES.items():
            keys.expect(key, wanted, optional=True)
        values = model_numbers(keys) | {"vocab": keys.integer(KEYS["vocab"]), "name": name}
        check_rules(values, keys.name)
        return ModelConfig(**values)
    except (ConfigError, OverflowError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _flatten(content: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Keys and values, and those of objects under ``key.inner``."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", x) for inner, x in value.items())
        else:
            yield key, value
