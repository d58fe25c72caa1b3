"""Any history of appending, going back, branching, growing and failing leaves no trace."""

from collections.abc import Sequence
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import settings

import bare_cache
from cache_histories import histories
from mlx_dsv4 import ops
from mlx_dsv4.cache import Cache
from tiny_models import tiny_model

pytestmark = pytest.mark.usefixtures("nan_in_new_buffers")


class BareDriver:
    """The ops alone: rows and states, no answers."""

    def make(self, capacity_tokens: int) -> Cache:
        return bare_cache.make(capacity_tokens)

    def append(self, tokens: Sequence[int], cache: Cache, by_steps: bool) -> int:
        calls = [[token] for token in tokens] if by_steps else [tokens]
        for call in calls:
            bare_cache.append(call, cache)
        return len(tokens)

    def fail(self, tokens: Sequence[int], cache: Cache, at: int) -> None:
        bare_cache.append(tokens, cache, fail_at=at % bare_cache.CONFIG.layers)

    def numbers(self, states: int) -> np.ndarray:
        return np.zeros(states)


class ModelDriver:
    """A model: rows, states, and the logits of every token."""

    def __init__(self) -> None:
        tiny = tiny_model(
            **{"ratios": (0, 4, 128), "hash_layers": 1, "hidden": 64, "heads": 2, "head_dim": 128},
            **{"q_rank": 32, "output_rank": 32, "output_groups": 2, "indexer_heads": 2},
            **{"indexer_dim": 64, "experts": 4, "expert_hidden": 32},
        )
        self.model = tiny.load("official")

    def make(self, capacity_tokens: int) -> Cache:
        return self.model.make_cache(capacity_tokens)

    def append(self, tokens: Sequence[int], cache: Cache, by_steps: bool) -> mx.array:
        if by_steps:
            return mx.concatenate([self.model.step(token, cache) for token in tokens])
        return self.model.prefill(tokens, cache)

    def fail(self, tokens: Sequence[int], cache: Cache, at: int) -> None:
        calls = 0
        real = ops.hyper_post

        def post(*args: mx.array) -> mx.array:
            nonlocal calls
            calls += 1
            if calls > at % (2 * self.model.config.layers):
                mx.eval(cache.handles())
                raise MemoryError("injected")
            return real(*args)

        with patch.object(ops, "hyper_post", post):
            self.model.prefill(tokens, cache)

    def numbers(self, states: mx.array) -> np.ndarray:
        logits = np.array(self.model.logits(states))
        return np.concatenate([np.array(states).reshape(len(logits), -1), logits], 1)


TestBareCache = histories(BareDriver(), "BareCache").TestCase
TestBareCache.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)

TestModel = histories(ModelDriver(), "TinyModel").TestCase
TestModel.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
