"""This package by its public API: the model that an :class:`mlx_dsv4.Engine` has loaded.

In plain numerics with float32 rows it computes what the peers compute; official numerics with
bfloat16 rows are what a user gets who asks for nothing else.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.engines import Logits, Setting
from mlx_dsv4 import Engine
from mlx_dsv4.model import Numerics

ROW_DTYPES: dict[Numerics, str] = {"plain": "float32", "official": "bfloat16"}

# What the engine reads at once when nobody else decodes.
CHUNK_TOKENS = 2048


class Ours:
    """One cache of the model."""

    def __init__(self, path: Path, capacity: int, numerics: Numerics) -> None:
        # Kept: an engine that is dropped closes its model.
        self._engine = Engine.load(path, context=capacity, numerics=numerics, device="cpu")
        self._model = self._engine.model
        self._cache = self._model.make_cache(capacity, row_dtype=ROW_DTYPES[numerics])

    def prefill(self, ids: Sequence[int]) -> Logits:
        self._cache.reset()
        for first in range(0, len(ids), CHUNK_TOKENS):
            state = self._model.prefill(ids[first : first + CHUNK_TOKENS], self._cache)
        return np.array(self._model.logits(self._model.last_token_state(state)))[0]

    def step(self, token: int) -> Logits:
        return np.array(self._model.logits(self._model.step(token, self._cache)))[0]


def load(path: Path, setting: Setting) -> Ours:
    numerics: Numerics = "official" if setting.variant == "official" else "plain"
    return Ours(path, setting.capacity, numerics)
