"""The attention sublayer: rows in, rows selected, attended and projected."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.model.batch import Part
from mlx_dsv4.model.weights import AttentionWeights, CompressorWeights


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """The round trip of each kind of row; "none" where plain numerics leaves it out."""

    rows: str
    index: str


ROUND_TRIPS = {
    "official": RoundTrips(rows="fp8", index="hadamard_fp4"),
    "plain": RoundTrips(rows="none", index="none"),
}


@dataclass(frozen=True, slots=True)
class Projected:
    """What the matrices make of the tokens of a call, whosever they are.

    Args:
        q: ``[T, H, D]`` row dtype.
        rows: ``[T, D]`` row dtype, of the window.
        rotation: ``[T, R/2, 2]`` float32.
        fold: Values and gates for the compressor, ``[T, ...]`` float32; None at ratio 0.
        index_fold: The same for the indexer's; None unless ratio 4.
        index_q: ``[T, I, D]`` row dtype; None where no part has rows to choose from.
        index_weights: ``[T, I]`` float32; None as before.
    """

    q: mx.array
    rows: mx.array
    rotation: mx.array
    fold: tuple[mx.array, mx.array] | None
    index_fold: tuple[mx.array, mx.array] | None
    index_q: mx.array | None
    index_weights: mx.array | None


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

    def __call__(self, x: mx.array, parts: Sequence[Part], rotation: mx.array) -> mx.array:
        """``[T, hidden]`` normed input -> ``[T, hidden]``; appends the tokens to their caches.

        Args:
            x: The tokens of all parts, in their order.
            parts: Of this layer.
            rotation: ``[T, R/2, 2]`` float32, of all tokens.
        """
        projected = self._project(x, parts, rotation)
        attended = [self._attend(projected, part) for part in parts]
        joined = attended[0] if len(attended) == 1 else mx.concatenate(attended)
        flat = joined.reshape(x.shape[0], -1)
        weights = self.weights
        return weights.output_b(weights.output_a(flat, groups=self.config.output_groups))

    def _project(self, x: mx.array, parts: Sequence[Part], rotation: mx.array) -> Projected:
        config, weights = self.config, self.weights
        dtype = parts[0].layer.attention_kv.dtype
        q_rank = mx.fast.rms_norm(weights.q_a(x), weights.q_a_norm, config.norm_eps)
        q = ops.attention_queries(
            weights.q_b(q_rank), rotation, heads=config.heads, eps=config.norm_eps, dtype=dtype
        )
        rows = ops.window_rows(
            weights.kv(x),
            weights.kv_norm,
            rotation,
            eps=config.norm_eps,
            round_trip=self.round_trips.rows,
            dtype=dtype,
        )
        indexer, index_q, index_weights = weights.indexer, None, None
        if indexer is not None and any(map(self._selects, parts)):
            index_q = ops.indexer_queries(
                indexer.q_b(q_rank),
                rotation,
                heads=config.indexer_heads,
                round_trip=self.round_trips.index,
                dtype=dtype,
            )
            index_weights = indexer.head_weights(x)
        return Projected(
            q,
            rows,
            rotation,
            _fold(x, weights.compressor),
            _fold(x, indexer.compressor if indexer else None),
            index_q,
            index_weights,
        )

    def _attend(self, projected: Projected, part: Part) -> mx.array:
        """``[T, H, D]`` of the tokens of one part, which are appended to its cache."""
        layer, span = part.layer, part.span
        # Rows that this call's own tokens close are visible to them: close before attending.
        self._compress(projected, part)
        selected = self._select(projected, part)
        rows = part.of(projected.rows)
        attended = ops.attention(
            part.of(projected.q),
            rows,
            layer.attention_kv,
            self.weights.sinks,
            part.of(projected.rotation),
            selected=selected,
            start=span.start,
            window=layer.window,
            ratio=layer.ratio,
        )
        # The ring is read as it was before these tokens: they overwrite it afterwards.
        layer.attention_kv = ops.window_write(
            layer.attention_kv, rows, start=span.start, window=layer.window, after=[attended]
        )
        return attended

    def _compress(self, projected: Projected, part: Part) -> None:
        layer, compressor = part.layer, self.weights.compressor
        if compressor is None or projected.fold is None or layer.compressor is None:
            return
        *state, layer.attention_kv = self._append(
            projected.fold,
            compressor,
            layer.compressor,
            layer.attention_kv,
            part,
            first_row=layer.window,
            round_trip=self.round_trips.rows,
        )
        layer.compressor = (state[0], state[1])

    def _select(self, projected: Projected, part: Part) -> mx.array | None:
        """The rows that the indexer chooses, ``[T, top_k]``; None where all are attended to."""
        layer, indexer, config = part.layer, self.weights.indexer, self.config
        if indexer is None or layer.indexer is None or layer.indexer_kv is None:
            return None
        assert projected.index_fold is not None
        *state, layer.indexer_kv = self._append(
            projected.index_fold,
            indexer.compressor,
            layer.indexer,
            layer.indexer_kv,
            part,
            first_row=0,
            round_trip=self.round_trips.index,
        )
        layer.indexer = (state[0], state[1])
        if not self._selects(part):
            return None
        assert projected.index_q is not None
        assert projected.index_weights is not None
        return ops.indexer_select(
            part.of(projected.index_q),
            part.of(projected.index_weights),
            layer.indexer_kv,
            start=part.span.start,
            ratio=layer.ratio,
            scale=(config.indexer_dim * config.indexer_heads) ** -0.5,
            k=config.top_k,
        )

    def _selects(self, part: Part) -> bool:
        """Whether there are more rows than are attended to."""
        return part.span.compressed_valid > self.config.top_k

    def _append(
        self,
        fold: tuple[mx.array, mx.array],
        weights: CompressorWeights,
        state: tuple[mx.array, mx.array],
        rows: mx.array,
        part: Part,
        *,
        first_row: int,
        round_trip: str,
    ) -> tuple[mx.array, mx.array, mx.array]:
        value, gate = fold
        return ops.compressor_append(
            part.of(value),
            part.of(gate),
            weights.ape,
            weights.norm,
            part.rotation,
            *state,
            rows,
            start=part.span.start,
            ratio=part.layer.ratio,
            first_row=first_row,
            eps=self.config.norm_eps,
            round_trip=round_trip,
        )


def _fold(x: mx.array, weights: CompressorWeights | None) -> tuple[mx.array, mx.array] | None:
    """Values and gates of the tokens, for a compressor."""
    return None if weights is None else (weights.value(x), weights.gate(x))
