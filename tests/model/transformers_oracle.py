"""Logits of Hugging Face transformers' DeepSeek-V4, an implementation independent of ours.

By itself it computes plain numerics. Everything here is float32 on torch's CPU kernels.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, DynamicCache

from mlx_dsv4.config import ModelConfig
from torch_round_trips import make_official

LAYER_TYPES = {
    0: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}
# Our name after `blk.N.` -> transformers' name after `model.layers.N.`.
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_sinks.weight": "self_attn.sinks",
    "attn_q_a.weight": "self_attn.q_a_proj.weight",
    "attn_q_a_norm.weight": "self_attn.q_a_norm.weight",
    "attn_q_b.weight": "self_attn.q_b_proj.weight",
    "attn_kv.weight": "self_attn.kv_proj.weight",
    "attn_kv_a_norm.weight": "self_attn.kv_norm.weight",
    "attn_output_a.weight": "self_attn.o_a_proj.weight",
    "attn_output_b.weight": "self_attn.o_b_proj.weight",
    "attn_compressor_kv.weight": "self_attn.compressor.kv_proj.weight",
    "attn_compressor_gate.weight": "self_attn.compressor.gate_proj.weight",
    "attn_compressor_ape.weight": "self_attn.compressor.position_bias",
    "attn_compressor_norm.weight": "self_attn.compressor.kv_norm.weight",
    "indexer_compressor_kv.weight": "self_attn.compressor.indexer.kv_proj.weight",
    "indexer_compressor_gate.weight": "self_attn.compressor.indexer.gate_proj.weight",
    "indexer_compressor_ape.weight": "self_attn.compressor.indexer.position_bias",
    "indexer_compressor_norm.weight": "self_attn.compressor.indexer.kv_norm.weight",
    "indexer.attn_q_b.weight": "self_attn.compressor.indexer.q_b_proj.weight",
    "indexer.proj.weight": "self_attn.compressor.indexer.scorer.weights_proj.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_tid2eid.weight": "mlp.gate.tid2eid",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
    "ffn_gate_shexp.weight": "mlp.shared_experts.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_experts.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_experts.down_proj.weight",
    **{
        f"hc_{ours}_{part}.weight": f"{theirs}_hc.{part}"
        for ours, theirs in (("attn", "attn"), ("ffn", "ffn"))
        for part in ("fn", "base", "scale")
    },
}
GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "output_hc_fn.weight": "model.hc_head.hc_fn",
    "output_hc_base.weight": "model.hc_head.hc_base",
    "output_hc_scale.weight": "model.hc_head.hc_scale",
}


def transformers_logits(
    config: ModelConfig,
    weights: Mapping[str, np.ndarray],
    tokens: Sequence[int],
    chunks: Sequence[int] | None = None,
    *,
    numerics: str = "plain",
) -> np.ndarray:
    """Logits of every token, ``[T, V]`` float32.

    Args:
        config: All layers must clamp at the same value, the shared expert too.
        weights: GGUF name to array, as :func:`mlx_dsv4.gguf.tiny.random_weights` makes them.
        tokens: Ids.
        chunks: Lengths of the calls through transformers' cache, e.g. ``[1] * len(tokens)``;
            None is one call without a cache.
        numerics: "plain", or "official" with the hooks of :mod:`torch_round_trips`.
    """
    model = build_model(config, weights)
    if numerics == "official":
        make_official(model, config.rope_dim)
    ids = torch.tensor([list(tokens)])
    with torch.no_grad(), one_thread():
        if chunks is None:
            return model(ids, use_cache=False).logits[0].numpy()
        if sum(chunks) != ids.shape[1]:
            raise ValueError(f"chunks must add up to {ids.shape[1]} tokens; got {sum(chunks)}")
        cache = DynamicCache(config=model.config)
        parts = [
            model(part, cache=cache, use_cache=True).logits[0].numpy()
            for part in torch.split(ids, list(chunks), dim=1)
        ]
    return np.concatenate(parts)


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than products of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build_model(config: ModelConfig, weights: Mapping[str, np.ndarray]) -> DeepseekV4ForCausalLM:
    """The model with our weights; every tensor of either side is used exactly once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DeepseekV4ForCausalLM(translate_config(config)).float().eval()
    state = {name: torch.from_numpy(np.array(array)) for name, array in translate(weights)}
    model.load_state_dict(state, strict=True)
    return model


def translate_config(config: ModelConfig) -> DeepseekV4Config:
    """Our numbers under transformers' names."""
    clamps = {*config.clamp, *config.clamp_shared}
    if len(clamps) != 1:
        raise ValueError(f"transformers has one clamp for all layers; got {sorted(clamps)}")
    return DeepseekV4Config(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        moe_intermediate_size=config.expert_hidden,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        head_dim=config.head_dim,
        q_lora_rank=config.q_rank,
        num_experts_per_tok=config.experts_used,
        n_routed_experts=config.experts[0],
        routed_scaling_factor=config.expert_scale,
        # No value depends on it; transformers warns of any length but the one YaRN stretches to.
        max_position_embeddings=int(config.yarn_factor * config.yarn_original_context),
        layer_types=[LAYER_TYPES[ratio] for ratio in config.ratios],
        mlp_layer_types=[
            "hash_moe" if layer < config.hash_layers else "moe" for layer in range(config.layers)
        ],
        hc_mult=config.streams,
        hc_sinkhorn_iters=config.sinkhorn_iterations,
        hc_eps=config.hyper_eps,
        swiglu_limit=clamps.pop(),
        sliding_window=config.window,
        o_groups=config.output_groups,
        o_lora_rank=config.output_rank,
        index_n_heads=config.indexer_heads,
        index_head_dim=config.indexer_dim,
        index_topk=config.top_k,
        rms_norm_eps=config.norm_eps,
        partial_rotary_factor=config.rope_dim / config.head_dim,
        rope_parameters=translate_rope(config),
        attn_implementation="eager",
        experts_implementation="eager",
    )


def translate_rope(config: ModelConfig) -> dict[str, dict[str, object]]:
    """Plain RoPE for layers without compressed rows, YaRN without a temperature for the others."""
    # The fraction applies to head_dim; the indexer's rows turn as many dims of its own.
    share = {"partial_rotary_factor": config.rope_dim / config.head_dim}
    main = {"rope_type": "default", "rope_theta": config.rope_base}
    yarn = {
        "rope_type": "yarn",
        "rope_theta": config.compress_rope_base,
        "factor": config.yarn_factor,
        "original_max_position_embeddings": config.yarn_original_context,
        "beta_fast": config.yarn_beta_fast,
        "beta_slow": config.yarn_beta_slow,
        "attention_factor": 1.0,
    }
    return {"main": main | share, "compress": yarn | share}


def translate(weights: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Our arrays under transformers' names; gate and up of the experts are one array there."""
    for name, array in weights.items():
        if name in GLOBAL_NAMES:
            yield GLOBAL_NAMES[name], array
            continue
        _, layer, part = name.split(".", 2)
        if part == "ffn_gate_exps.weight":
            both = (array, weights[f"blk.{layer}.ffn_up_exps.weight"])
            yield f"model.layers.{layer}.mlp.experts.gate_up_proj", np.concatenate(both, 1)
        elif part != "ffn_up_exps.weight":
            yield f"model.layers.{layer}.{LAYER_NAMES[part]}", array
