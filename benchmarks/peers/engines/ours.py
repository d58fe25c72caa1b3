"""This package by its public API: the model that an :class:`mlx_dsv4.Engine` has loaded."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks.peers.engines import Logits, Setting
from mlx_dsv4 import Engine
from mlx_dsv4.model import Numerics

# What the engine reads at once when nobody else decodes.
CHUNK_TOKENS = 2048


class Ours:
    """One cache of the model, with rows as they are by default."""

    def __init__(self, path: Path, setting: Setting) -> None:
        numerics: Numerics = get_args(Numerics)[get_args(Numerics).index(setting.variant)]
        # Kept: an engine that is dropped closes its model.
        self._engine = Engine.load(path, context=setting.capacity, numerics=numerics, device="cpu")
        self._model = self._engine.model
        self._cache = self._model.make_cache(setting.capacity)

    def prefill(self, ids: Sequence[int]) -> Logits:
        self._cache.reset()
        for first in range(0, len(ids), CHUNK_TOKENS):
            state = self._model.prefill(ids[first : first + CHUNK_TOKENS], self._cache)
        return np.array(self._model.logits(self._model.last_token_state(state)))[0]

    def step(self, token: int) -> Logits:
        return np.array(self._model.logits(self._model.step(token, self._cache)))[0]


def load(path: Path, setting: Setting) -> Ours:
    return Ours(path, setting)
