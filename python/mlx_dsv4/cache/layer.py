"""The held buffers of one layer."""

import mlx.core as mx

from mlx_dsv4.cache.plan import LayerPlan
from mlx_dsv4.ops import uninitialized

DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}


class LayerCache:
    """Buffers of one layer, written in place.

    Every attribute is the newest handle on its buffer: an op that writes returns a new handle on
    the same memory, which must replace the one it was given. Handles order the graph: a reader
    that must see a write takes the handle made by it.

    Attributes:
        ratio: Tokens per span, 0 where the layer has no compressed rows.
        window: Ring rows.
        attention_kv: ``[window + N, D]`` row dtype: the ring, then the compressed rows.
        compressor: (value, score) of the open span, float32; None at ratio 0.
        indexer_kv: ``[N, indexer dim]`` row dtype; None unless ratio 4.
        indexer: (value, score) of the index rows' open span; None unless ratio 4.
    """

    def __init__(self, plan: LayerPlan) -> None:
        self.ratio = plan.ratio
        self.window = plan.window
        buffers = {b.name: uninitialized(b.shape, DTYPES[b.dtype]) for b in plan.buffers}
        self.attention_kv = buffers["attention_kv"]
        self.compressor: tuple[mx.array, mx.array] | None = None
        self.indexer: tuple[mx.array, mx.array] | None = None
        self.indexer_kv: mx.array | None = buffers.get("indexer_kv")
        if "compressor_value" in buffers:
            self.compressor = (buffers["compressor_value"], buffers["compressor_score"])
        if "indexer_value" in buffers:
            self.indexer = (buffers["indexer_value"], buffers["indexer_score"])
        self.reset()

    def reset(self) -> None:
        """Empty the compressor states; rows stay, since nothing they hold is visible."""
        self.compressor = _empty(self.compressor)
        self.indexer = _empty(self.indexer)

    def handles(self) -> list[mx.array]:
        """Every buffer, to evaluate what was written."""
        states = [a for state in (self.compressor, self.indexer) if state for a in state]
        rows = [self.attention_kv] + ([] if self.indexer_kv is None else [self.indexer_kv])
        return rows + states


def _empty(state: tuple[mx.array, mx.array] | None) -> tuple[mx.array, mx.array] | None:
    if state is None:
        return None
    value, score = state
    return mx.zeros(value.shape), mx.full(score.shape, -mx.inf)
