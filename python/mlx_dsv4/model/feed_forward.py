"""The feed-forward sublayer: routed experts plus the shared one."""

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.model.weights import FeedForwardWeights


class FeedForward:
    """The experts of one layer; holds weights and numbers, no state.

    Args:
        config: Numbers of the model.
        weights: Of this layer.
    """

    def __init__(self, config: ModelConfig, weights: FeedForwardWeights) -> None:
        self.config = config
        self.weights = weights
        self._shared_by_one = self._shared_by(1)  # of decoding: made once
        mx.eval(self._shared_by_one)

    def __call__(self, x: mx.array, tokens: mx.array) -> mx.array:
        """``[T, hidden]`` normed input and its token ids ``[T]`` int32 -> ``[T, hidden]``."""
        weights, n_tokens = self.weights, x.shape[0]
        ids, shares = self._route(weights.router(x), tokens)
        only = self._shared_by_one if n_tokens == 1 else self._shared_by(n_tokens)
        return weights.routed(x, ids, shares) + weights.shared(x, *only)

    @staticmethod
    def _shared_by(n_tokens: int) -> tuple[mx.array, mx.array]:
        """Ids and weights by which every token takes all of the only shared expert."""
        return mx.zeros((n_tokens, 1), mx.int32), mx.ones((n_tokens, 1))

    def _route(self, logits: mx.array, tokens: mx.array) -> tuple[mx.array, mx.array]:
        config, weights = self.config, self.weights
        if weights.table is not None:
            return ops.route_hashed(logits, tokens, weights.table, scale=config.expert_scale)
        assert weights.bias is not None
        return ops.route_scored(
            logits, weights.bias, k=config.experts_used, scale=config.expert_scale
        )
