"""The attention sublayer: rows in, rows selected, attended and projected."""

from dataclasses import dataclass

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.cache import LayerCache, SpanPlan
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.model.rope import Rotations
from mlx_dsv4.model.weights import AttentionWeights, CompressorWeights, IndexerWeights


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """The round trip of each kind of row; "none" where plain numerics leaves it out."""

    rows: str
    index: str


ROUND_TRIPS = {
    "official": RoundTrips(rows="fp8", index="hadamard_fp4"),
    "plain": RoundTrips(rows="none", index="none"),
}


class Attention:
    """The attention sublayer of one layer; holds weights and numbers, no state.

    Args:
        config: Numbers of the model.
        weights: Of this layer.
        round_trips: From :data:`ROUND_TRIPS`.
    """

    def __init__(
        self, config: ModelConfig, weights: AttentionWeights, round_trips: RoundTrips
    ) -> None:
        self.config = config
        self.weights = weights
        self.round_trips = round_trips

    def __call__(
        self, x: mx.array, cache: LayerCache, span: SpanPlan, rotations: Rotations
    ) -> mx.array:
        """``[T, hidden]`` normed input -> ``[T, hidden]``; appends the tokens to ``cache``."""
        config, weights = self.config, self.weights
        dtype = cache.attention_kv.dtype
        q_rank = mx.fast.rms_norm(weights.q_a(x), weights.q_a_norm, config.norm_eps)
        q = ops.attention_queries(
            weights.q_b(q_rank),
            rotations.tokens,
            heads=config.heads,
            eps=config.norm_eps,
            dtype=dtype,
        )
        rows = ops.window_rows(
            weights.kv(x),
            weights.kv_norm,
            rotations.tokens,
            eps=config.norm_eps,
            round_trip=self.round_trips.rows,
            dtype=dtype,
        )
        # Rows that this call's own tokens close are visible to them: close before attending.
        self._compress(x, cache, span, rotations)
        selected = self._select(x, q_rank, cache, span, rotations)
        attended = ops.attention(
            q,
            rows,
            cache.attention_kv,
            weights.sinks,
            rotations.tokens,
            selected=selected,
            start=span.start,
            window=cache.window,
            ratio=cache.ratio,
        )
        # The ring is read as it was before these tokens: they overwrite it afterwards.
        cache.attention_kv = ops.window_write(
            cache.attention_kv, rows, start=span.start, window=cache.window, after=[attended]
        )
        flat = attended.reshape(x.shape[0], -1)
        return weights.output_b(weights.output_a(flat, groups=config.output_groups))

    def _compress(
        self, x: mx.array, cache: LayerCache, span: SpanPlan, rotations: Rotations
    ) -> None:
        if self.weights.compressor is None or cache.compressor is None:
            return
        *state, cache.attention_kv = self._append(
            x,
            self.weights.compressor,
            cache.compressor,
            cache.attention_kv,
            span,
            rotations,
            ratio=cache.ratio,
            first_row=cache.window,
            round_trip=self.round_trips.rows,
        )
        cache.compressor = (state[0], state[1])

    def _select(
        self,
        x: mx.array,
        q_rank: mx.array,
        cache: LayerCache,
        span: SpanPlan,
        rotations: Rotations,
    ) -> mx.array | None:
        """The rows that the indexer chooses, ``[T, top_k]``; None where all are attended to."""
        indexer = self.weights.indexer
        if indexer is None or cache.indexer is None or cache.indexer_kv is None:
            return None
        *state, cache.indexer_kv = self._append(
            x,
            indexer.compressor,
            cache.indexer,
            cache.indexer_kv,
            span,
            rotations,
            ratio=cache.ratio,
            first_row=0,
            round_trip=self.round_trips.index,
        )
        cache.indexer = (state[0], state[1])
        if span.compressed_valid <= self.config.top_k:
            return None
        return self._rank(x, q_rank, indexer, cache.indexer_kv, span, rotations, cache.ratio)

    def _rank(
        self,
        x: mx.array,
        q_rank: mx.array,
        indexer: IndexerWeights,
        index_rows: mx.array,
        span: SpanPlan,
        rotations: Rotations,
        ratio: int,
    ) -> mx.array:
        config = self.config
        q = ops.indexer_queries(
            indexer.q_b(q_rank),
            rotations.tokens,
            heads=config.indexer_heads,
            round_trip=self.round_trips.index,
            dtype=index_rows.dtype,
        )
        return ops.indexer_select(
            q,
            indexer.head_weights(x),
            index_rows,
            start=span.start,
            ratio=ratio,
            scale=(config.indexer_dim * config.indexer_heads) ** -0.5,
            k=config.top_k,
        )

    def _append(
        self,
        x: mx.array,
        weights: CompressorWeights,
        state: tuple[mx.array, mx.array],
        rows: mx.array,
        span: SpanPlan,
        rotations: Rotations,
        *,
        ratio: int,
        first_row: int,
        round_trip: str,
    ) -> tuple[mx.array, mx.array, mx.array]:
        return ops.compressor_append(
            weights.value(x),
            weights.gate(x),
            weights.ape,
            weights.norm,
            rotations.rows,
            *state,
            rows,
            start=span.start,
            ratio=ratio,
            first_row=first_row,
            eps=self.config.norm_eps,
            round_trip=round_trip,
        )
