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
        rows = [b for b in plan.buffers if b.name in ("attention_kv", "indexer_kv")]
        self._rows = {b.name: uninitialized(b.shape, DTYPES[b.dtype]) for b in rows}
        self._states = {b.name: b.shape for b in plan.buffers if b not in rows}
        self.reset()

    def reset(self) -> None:
        """Drop every handle and empty the compressor states.

        Rows stay, since nothing they hold is visible.
        """
        self.attention_kv = self._rows["attention_kv"]
        self.indexer_kv: mx.array | None = self._rows.get("indexer_kv")
        self.compressor = self._empty_state("compressor")
        self.indexer = self._empty_state("indexer")

    def _empty_state(self, name: str) -> tuple[mx.array, mx.array] | None:
        shape = self._states.get(f"{name}_value")
        return None if shape is None else (mx.zeros(shape), mx.full(shape, -mx.inf))

    def handles(self) -> list[mx.array]:
        """Every buffer, to evaluate what was written."""
        states = [a for state in (self.compressor, self.indexer) if state for a in state]
        rows = [self.attention_kv] + ([] if self.indexer_kv is None else [self.indexer_kv])
        return rows + states
