"""The forward pass over a whole sequence at once: no cache, every row made from the start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, overload

import numpy as np

from mlx_dsv4.config import ModelConfig
from mlx_dsv4.reference.attention import attention, attention_queries
from mlx_dsv4.reference.compressor import compressor_append, empty_state
from mlx_dsv4.reference.experts import experts
from mlx_dsv4.reference.hyper import hyper_head, hyper_post, hyper_pre
from mlx_dsv4.reference.indexer import (
    indexer_queries,
    indexer_scores,
    indexer_topk,
    visible_rows,
)
from mlx_dsv4.reference.matmul import embed, matmul
from mlx_dsv4.reference.rope import inverse_frequencies, rotation_table
from mlx_dsv4.reference.route import expert_scores, route_hashed, route_scored
from mlx_dsv4.reference.types import Array, rms_norm
from mlx_dsv4.reference.window import window_rows

# Round trips of window and compressed rows, and of index rows and queries.
_ROUND_TRIPS = {"official": ("fp8", "hadamard_fp4"), "plain": ("none", "none")}


@dataclass(frozen=True)
class Trace:
    """What the tokens chose, and how nearly they chose otherwise.

    Two implementations whose rounding differs may part at a token with a small margin, and from
    there on: later tokens read its rows.

    Args:
        selected: Ratio-4 layer to row ids ``[T, top_k]``, ascending, -1 where none is left.
        experts: Expert ids ``[T, experts_used]`` of each layer.
        margins: Per choice of a scored layer or an indexer, ``[T]``: worst chosen less best
            rejected, over the largest magnitude of what was compared; infinite without a choice.
    """

    selected: dict[int, Array] = field(default_factory=dict)
    experts: list[Array] = field(default_factory=list)
    margins: list[Array] = field(default_factory=list)

    def margin(self) -> Array:
        """The smallest margin of each token, ``[T]``."""
        none = [np.full(self.experts[0].shape[0], np.inf)]
        return np.asarray(np.min(self.margins + none, axis=0))


@dataclass(frozen=True)
class _Run:
    """One call: the numbers of the model, the kinds of rows, the tokens, and their trace."""

    config: ModelConfig
    rows: str
    index_rows: str
    dtype: str
    tokens: Array
    trace: Trace


class _Layer:
    """The tensors of one layer by the part of their name after ``blk.N.``."""

    def __init__(self, weights: Mapping[str, Array], index: int, config: ModelConfig) -> None:
        self.index = index
        self.ratio = config.ratios[index]
        self._weights = weights

    def __getitem__(self, part: str) -> Array:
        return self._weights[f"blk.{self.index}.{part}"]


@overload
def forward(
    config: ModelConfig,
    weights: Mapping[str, Array],
    tokens: Array,
    *,
    numerics: str,
    dtype: str,
    trace: Literal[False] = False,
) -> Array: ...


@overload
def forward(
    config: ModelConfig,
    weights: Mapping[str, Array],
    tokens: Array,
    *,
    numerics: str,
    dtype: str,
    trace: Literal[True],
) -> tuple[Array, Trace]: ...


def forward(
    config: ModelConfig,
    weights: Mapping[str, Array],
    tokens: Array,
    *,
    numerics: str,
    dtype: str,
    trace: bool = False,
) -> Array | tuple[Array, Trace]:
    """Logits of every token, ``[T, V]`` float64; the sequence starts at position 0.

    All arithmetic is float64. What is rounded is what is stored: queries, rows and attention
    outputs take the row dtype, and with "official" numerics rows also go through their round
    trips. "plain" with float32 rows is the model without quantisation.

    Args:
        config: Numbers of the model.
        weights: GGUF name to float32 array (int32 for expert tables), outer dimension first.
        tokens: ``[T]`` integers, T >= 1.
        numerics: "official" or "plain".
        dtype: Row dtype, "bfloat16" or "float32".
        trace: Whether to return what was selected as well.

    Raises:
        ValueError: numerics or dtype is another word.
    """
    if numerics not in _ROUND_TRIPS:
        raise ValueError(f"numerics must be official or plain; got {numerics}")
    rows, index_rows = _ROUND_TRIPS[numerics]
    run = _Run(config, rows, index_rows, dtype, np.asarray(tokens), Trace())
    embedded = embed(run.tokens, _blocks(weights["token_embd.weight"]), format="f32")
    streams = np.repeat(embedded[:, None].astype(np.float64), config.streams, axis=1)
    for index in range(config.layers):
        layer = _Layer(weights, index, config)
        x, post, comb = _collapse(streams, layer, "attn", run)
        streams = hyper_post(streams, _attend(x, layer, run), post, comb)
        x, post, comb = _collapse(streams, layer, "ffn", run)
        streams = hyper_post(streams, _feed_forward(x, layer, run), post, comb)
    x = hyper_head(
        streams,
        weights["output_hc_fn.weight"],
        weights["output_hc_base.weight"],
        weights["output_hc_scale.weight"],
        weights["output_norm.weight"],
        norm_eps=config.norm_eps,
        hyper_eps=config.hyper_eps,
    )
    logits = _product(x, weights["output.weight"])
    return (logits, run.trace) if trace else logits


def _blocks(weight: Array) -> Array:
    """A float32 array as the raw blocks that the ops read."""
    return np.ascontiguousarray(weight, np.float32).view(np.uint8)


def _product(x: Array, weight: Array, groups: int = 1) -> Array:
    return matmul(x, _blocks(weight), format="f32", groups=groups)


def _collapse(streams: Array, layer: _Layer, part: str, run: _Run) -> tuple[Array, Array, Array]:
    """Normed input of the sublayer ``part`` ("attn" or "ffn"), and the weights back."""
    return hyper_pre(
        streams,
        layer[f"hc_{part}_fn.weight"],
        layer[f"hc_{part}_base.weight"],
        layer[f"hc_{part}_scale.weight"],
        layer[f"{part}_norm.weight"],
        norm_eps=run.config.norm_eps,
        hyper_eps=run.config.hyper_eps,
        iterations=run.config.sinkhorn_iterations,
    )


def _rotation(positions: Array, layer: _Layer, config: ModelConfig) -> Array:
    """Cosine and sine at ``positions``: a layer with compressed rows has YaRN on another base."""
    if layer.ratio == 0:
        frequencies = inverse_frequencies(config.rope_dim, config.rope_base)
    else:
        frequencies = inverse_frequencies(
            config.rope_dim,
            config.compress_rope_base,
            factor=config.yarn_factor,
            original_context=config.yarn_original_context,
            beta_fast=config.yarn_beta_fast,
            beta_slow=config.yarn_beta_slow,
        )
    return rotation_table(positions, frequencies)


def _attend(x: Array, layer: _Layer, run: _Run) -> Array:
    """The attention sublayer, ``[T, hidden] -> [T, hidden]``."""
    config, n_tokens = run.config, x.shape[0]
    rotation = _rotation(np.arange(n_tokens), layer, config)
    q_rank = rms_norm(
        _product(x, layer["attn_q_a.weight"]), config.norm_eps, layer["attn_q_a_norm.weight"]
    )
    q = attention_queries(
        _product(q_rank, layer["attn_q_b.weight"]),
        rotation,
        heads=config.heads,
        eps=config.norm_eps,
        dtype=run.dtype,
    )
    rows = window_rows(
        _product(x, layer["attn_kv.weight"]),
        layer["attn_kv_a_norm.weight"],
        rotation,
        eps=config.norm_eps,
        round_trip=run.rows,
        dtype=run.dtype,
    )
    # The sequence starts at position 0, so nobody reads the ring.
    ring = np.full((config.window, config.head_dim), np.nan)
    compressed = np.zeros((0, config.head_dim))
    if layer.ratio:
        compressed = _compress(x, layer, "attn_compressor", config.head_dim, run.rows, run)
    attended = attention(
        q,
        rows,
        np.concatenate([ring, compressed]),
        layer["attn_sinks.weight"],
        rotation,
        selected=_select(x, q_rank, rotation, layer, run) if layer.ratio == 4 else None,
        start=0,
        window=config.window,
        ratio=layer.ratio,
        dtype=run.dtype,
    )
    latent = _product(
        attended.reshape(n_tokens, -1), layer["attn_output_a.weight"], config.output_groups
    )
    return _product(latent, layer["attn_output_b.weight"])


def _compress(x: Array, layer: _Layer, prefix: str, dim: int, round_trip: str, run: _Run) -> Array:
    """The rows of every closed span, ``[T // ratio, dim]``."""
    config, ratio = run.config, layer.ratio
    value = _product(x, layer[f"{prefix}_kv.weight"])
    n_rows = x.shape[0] // ratio
    _, _, rows = compressor_append(
        value,
        _product(x, layer[f"{prefix}_gate.weight"]),
        layer[f"{prefix}_ape.weight"],
        layer[f"{prefix}_norm.weight"],
        _rotation(ratio * np.arange(n_rows), layer, config),
        *empty_state(ratio, value.shape[1], dim),
        np.full((n_rows, dim), np.nan),
        start=0,
        ratio=ratio,
        first_row=0,
        eps=config.norm_eps,
        round_trip=round_trip,
        dtype=run.dtype,
    )
    return rows


def _select(x: Array, q_rank: Array, rotation: Array, layer: _Layer, run: _Run) -> Array:
    """The rows that each token's indexer chooses, ``[T, top_k]``."""
    config = run.config
    rows = _compress(x, layer, "indexer_compressor", config.indexer_dim, run.index_rows, run)
    q = indexer_queries(
        _product(q_rank, layer["indexer.attn_q_b.weight"]),
        rotation,
        heads=config.indexer_heads,
        round_trip=run.index_rows,
        dtype=run.dtype,
    )
    scores = indexer_scores(
        q,
        _product(x, layer["indexer.proj.weight"]),
        rows,
        start=0,
        ratio=layer.ratio,
        scale=(config.indexer_dim * config.indexer_heads) ** -0.5,
    )
    selected = indexer_topk(scores, start=0, ratio=layer.ratio, k=config.top_k)
    run.trace.selected[layer.index] = selected
    visible = [visible_rows(t, layer.ratio) for t in range(x.shape[0])]
    run.trace.margins.append(
        np.array([_margin(row[:n], config.top_k) for row, n in zip(scores, visible, strict=True)])
    )
    return selected


def _margin(keys: Array, k: int) -> float:
    """How far the k-th best of ``keys`` is from the next, over their largest magnitude."""
    if keys.size <= k:
        return np.inf
    ranked = -np.sort(-keys)
    return float((ranked[k - 1] - ranked[k]) / np.abs(keys).max())


def _feed_forward(x: Array, layer: _Layer, run: _Run) -> Array:
    """The routed experts and the shared one, ``[T, hidden] -> [T, hidden]``."""
    config = run.config
    logits = _product(x, layer["ffn_gate_inp.weight"])
    if layer.index < config.hash_layers:
        table = layer["ffn_gate_tid2eid.weight"]
        ids, weights = route_hashed(logits, run.tokens, table, scale=config.expert_scale)
    else:
        bias = layer["exp_probs_b.bias"]
        k = config.experts_used
        ids, weights = route_scored(logits, bias, k=k, scale=config.expert_scale)
        keys = expert_scores(logits) + bias
        run.trace.margins.append(np.array([_margin(row, k) for row in keys]))
    run.trace.experts.append(ids)
    routed = experts(
        x,
        ids,
        weights,
        *(_blocks(layer[f"ffn_{part}_exps.weight"]) for part in ("gate", "up", "down")),
        formats=("f32", "f32", "f32"),
        clamp=config.clamp[layer.index],
    )
    # The shared expert is an expert of its own that every token goes to with weight 1.
    shared = experts(
        x,
        np.zeros((x.shape[0], 1), np.int32),
        np.ones((x.shape[0], 1)),
        *(_blocks(layer[f"ffn_{part}_shexp.weight"][None]) for part in ("gate", "up", "down")),
        formats=("f32", "f32", "f32"),
        clamp=config.clamp_shared[layer.index],
    )
    return routed + shared
