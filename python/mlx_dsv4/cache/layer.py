"""The held buffers of one layer."""

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache.plan import STATE_NAMES, LayerPlan
from mlx_dsv4.ops import host_bytes, uninitialized

DTYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}
Rows = dict[str, NDArray[np.uint8]]  # memory by kind, [rows, row bytes] each
EMPTY = {"value": 0.0, "score": -np.inf}  # what a state holds where no token is


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
        fixed: Memory of the ring, then of the states; nothing that writes there may be in flight
            when it is used.
    """

    def __init__(self, plan: LayerPlan) -> None:
        self.ratio = plan.ratio
        self.window = plan.window
        self._buffers = {b.name: uninitialized(b.shape, DTYPES[b.dtype]) for b in plan.buffers}
        self._memory = {name: host_bytes(buffer) for name, buffer in self._buffers.items()}
        states = sorted(STATE_NAMES & self._memory.keys())
        self.fixed = (
            self._memory["attention_kv"][: self.window],
            *(self._memory[name] for name in states),
        )
        self.reset()

    def reset(self) -> None:
        """Drop every handle and empty the compressor states; nothing may be in flight.

        Rows stay, since nothing they hold is visible.
        """
        for name in STATE_NAMES & self._memory.keys():
            self._memory[name].view(np.float32).fill(EMPTY[name.rpartition("_")[2]])
        self.drop_handles()

    def drop_handles(self) -> None:
        """Go back to handles that wait for nothing, of whatever the buffers hold."""
        self.attention_kv = self._buffers["attention_kv"]
        self.indexer_kv: mx.array | None = self._buffers.get("indexer_kv")
        self.compressor = self._state("compressor")
        self.indexer = self._state("indexer")

    def handles(self) -> list[mx.array]:
        """Every buffer, to evaluate what was written."""
        states = [a for state in (self.compressor, self.indexer) if state for a in state]
        rows = [self.attention_kv] + ([] if self.indexer_kv is None else [self.indexer_kv])
        return rows + states

    def closed(self, position: int) -> Rows:
        """The memory of the rows of closed spans after ``position`` tokens, ``[rows, row bytes]``
        by kind. They are never written again."""
        n_rows = position // self.ratio if self.ratio else 0
        rows = {"compressed": self._memory["attention_kv"][self.window :][:n_rows]}
        if "indexer_kv" in self._memory:
            rows["indexer"] = self._memory["indexer_kv"][:n_rows]
        return rows

    def _state(self, name: str) -> tuple[mx.array, mx.array] | None:
        if f"{name}_value" not in self._buffers:
            return None
        return self._buffers[f"{name}_value"], self._buffers[f"{name}_score"]
