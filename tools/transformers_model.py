"""Our model's numbers and tensors under the names of Hugging Face transformers, and back."""

from collections.abc import Iterator, Mapping

import numpy as np
from transformers import DeepseekV4Config

from mlx_dsv4.config import ModelConfig

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


def translate_config(config: ModelConfig) -> DeepseekV4Config:
    """Our numbers under transformers' names."""
    clamps = {*config.clamp, *config.clamp_shared}
    if len(clamps) != 1:
        raise ValueError(f"transformers has one clamp for all layers; got {sorted(clamps)}")
    return DeepseekV4Config(  # type: ignore[call-arg] # not all of its arguments are in its types
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


def translate_back(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse of :func:`translate`: transformers' arrays under GGUF names."""
    layer_names = {theirs: ours for ours, theirs in LAYER_NAMES.items()}
    global_names = {theirs: ours for ours, theirs in GLOBAL_NAMES.items()}
    weights: dict[str, np.ndarray] = {}
    for name, array in state.items():
        if name in global_names:
            weights[global_names[name]] = array
            continue
        layer, part = name.removeprefix("model.layers.").split(".", 1)
        if part == "mlp.experts.gate_up_proj":
            gate, up = np.split(array, 2, axis=1)
            weights[f"blk.{layer}.ffn_gate_exps.weight"] = gate
            weights[f"blk.{layer}.ffn_up_exps.weight"] = up
        else:
            weights[f"blk.{layer}.{layer_names[part]}"] = array
    return weights
