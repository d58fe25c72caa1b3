"""What each tensor of a GGUF file is called in a checkpoint."""

import re

from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.names import TensorSpec, is_ignorable

_GLOBAL = {
    "token_embd.weight": "embed.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "head.weight",
    "output_hc_fn.weight": "hc_head_fn",
    "output_hc_base.weight": "hc_head_base",
    "output_hc_scale.weight": "hc_head_scale",
}
# After `blk.N.` -> after `layers.N.`.
_IN_LAYER = {
    "attn_norm.weight": "attn_norm.weight",
    "attn_sinks.weight": "attn.attn_sink",
    "attn_q_a.weight": "attn.wq_a.weight",
    "attn_q_a_norm.weight": "attn.q_norm.weight",
    "attn_q_b.weight": "attn.wq_b.weight",
    "attn_kv.weight": "attn.wkv.weight",
    "attn_kv_a_norm.weight": "attn.kv_norm.weight",
    "attn_output_a.weight": "attn.wo_a.weight",
    "attn_output_b.weight": "attn.wo_b.weight",
    "attn_compressor_ape.weight": "attn.compressor.ape",
    "attn_compressor_kv.weight": "attn.compressor.wkv.weight",
    "attn_compressor_gate.weight": "attn.compressor.wgate.weight",
    "attn_compressor_norm.weight": "attn.compressor.norm.weight",
    "indexer.attn_q_b.weight": "attn.indexer.wq_b.weight",
    "indexer.proj.weight": "attn.indexer.weights_proj.weight",
    "indexer_compressor_ape.weight": "attn.indexer.compressor.ape",
    "indexer_compressor_kv.weight": "attn.indexer.compressor.wkv.weight",
    "indexer_compressor_gate.weight": "attn.indexer.compressor.wgate.weight",
    "indexer_compressor_norm.weight": "attn.indexer.compressor.norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "ffn_gate_inp.weight": "ffn.gate.weight",
    "ffn_gate_tid2eid.weight": "ffn.gate.tid2eid",
    "exp_probs_b.bias": "ffn.gate.bias",
    **{
        f"hc_{part}_{kind}.weight": f"hc_{part}_{kind}"
        for part in ("attn", "ffn")
        for kind in ("fn", "base", "scale")
    },
}
_PROJECTIONS = {"gate": "w1", "down": "w2", "up": "w3"}


def source_names(name: str, spec: TensorSpec) -> tuple[str, ...]:
    """The tensors of a checkpoint that make up one of a GGUF file.

    Args:
        name: One of :func:`mlx_dsv4.gguf.expected_tensors`.
        spec: Its shape and role.

    Returns:
        One name, or that of each expert in order.
    """
    if name in _GLOBAL:
        return (_GLOBAL[name],)
    _, layer, part = name.split(".", 2)
    if part in _IN_LAYER:
        return (f"layers.{layer}.{_IN_LAYER[part]}",)
    _, projection, kind = part.removesuffix(".weight").split("_")
    weight = f"{_PROJECTIONS[projection]}.weight"
    if kind == "shexp":
        return (f"layers.{layer}.ffn.shared_experts.{weight}",)
    return tuple(f"layers.{layer}.ffn.experts.{expert}.{weight}" for expert in range(spec.shape[0]))


def scale_name(weight: str) -> str:
    """Where the scales of a weight in FP8 or FP4 are."""
    return f"{weight.removesuffix('.weight')}.scale"


def is_draft(name: str, config: ModelConfig) -> bool:
    """Whether a tensor of a checkpoint belongs to the parts that guess tokens ahead."""
    return is_ignorable(re.sub(r"^layers\.", "blk.", name), config)
