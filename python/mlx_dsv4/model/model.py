"""The forward pass: tokens and a cache in, hidden state and logits out."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from os import PathLike
from typing import Literal

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.cache import (
    Cache,
    CachePlan,
    Fingerprint,
    SavedCache,
    load_cache,
    plan_cache,
)
from mlx_dsv4.cache.fingerprint import differences
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import CacheStateError, ClosedError, PromptError, UnsupportedModelError
from mlx_dsv4.model.attention import ROUND_TRIPS, Attention
from mlx_dsv4.model.batch import Batch
from mlx_dsv4.model.feed_forward import FeedForward
from mlx_dsv4.model.limits import unmet_limits
from mlx_dsv4.model.rope import Rope
from mlx_dsv4.model.weights import HyperWeights, LayerWeights, WeightMemory, Weights
from mlx_dsv4.token_ids import check_token_ids

Numerics = Literal["official", "plain"]
CPU = mx.Device(mx.cpu, 0)
Layers = list[tuple[LayerWeights, Attention, FeedForward]]


class Model:
    """DeepSeek-V4 over bound weights. It owns no mutable state: caches are passed in.

    One prompt gives one answer: the hidden state of a token does not depend, to the bit, on how
    the tokens before and beside it were cut into calls.

    Args:
        weights: From :func:`load_weights`.
        numerics: "official" reproduces the round trips of the quantised caches that the
            checkpoint was trained with; "plain" leaves them out, as transformers does.
        device: Where the kernels run.

    Raises:
        ValueError: ``numerics`` is something else.
        UnsupportedModelError: the kernels do not support a number of the model; names it.
    """

    def __init__(
        self, weights: Weights, *, numerics: Numerics = "official", device: mx.Device = CPU
    ) -> None:
        if numerics not in ROUND_TRIPS:
            raise ValueError(f"numerics must be official or plain; got {numerics}")
        unmet = unmet_limits(weights.config, numerics)
        if unmet:
            raise UnsupportedModelError(f"no kernel for this model: {'; '.join(unmet)}")
        self.config: ModelConfig = weights.config
        self.numerics = numerics
        self.device = device
        self._rope = Rope(weights.config)
        round_trips = ROUND_TRIPS[numerics]
        layers = [
            (
                layer,
                Attention(weights.config, layer.attention, round_trips),
                FeedForward(weights.config, layer.feed_forward),
            )
            for layer in weights.layers
        ]
        # One reference, so that a call has all of it or none when another thread closes the model.
        self._bound: tuple[Weights, Layers] | None = (weights, layers)

    def _open(self) -> tuple[Weights, Layers]:
        bound = self._bound
        if bound is None:
            raise ClosedError(f"{self.config.name} must be open; it has been closed")
        return bound

    @property
    def _weights(self) -> Weights:
        return self._open()[0]

    def check_open(self) -> None:
        """Raise ClosedError if the model has been closed."""
        self._open()

    def memory(self) -> WeightMemory:
        """Where the weights are now.

        Raises:
            ClosedError: the model has been closed.
        """
        return self._weights.memory()

    def close(self) -> None:
        """Let go of the weights: the mapping of the file ends with the last work that reads it.

        Caches stay as they are; all that needs weights raises ClosedError from here on.
        """
        self._bound = None

    def plan_cache(self, capacity_tokens: int, *, row_dtype: str = "bfloat16") -> CachePlan:
        """Sizes of a cache for this model; see :func:`mlx_dsv4.cache.plan_cache`."""
        return plan_cache(self.config, capacity_tokens, row_dtype=row_dtype)

    def fingerprint(self, *, row_dtype: str = "bfloat16") -> Fingerprint:
        """What rows of this model depend on besides the tokens."""
        return Fingerprint(
            config=self.config,
            row_format=row_dtype,
            numerics=self.numerics,
            arithmetic=f"{self.device.type.name} {ops.ARITHMETIC}",
            model=self._weights_digest,
            tokenizer=self._weights.vocabulary,
        )

    def make_cache(self, capacity_tokens: int, *, row_dtype: str = "bfloat16") -> Cache:
        """An empty cache for ``capacity_tokens`` tokens of one session.

        Raises:
            PlanError: no cache can be planned for these numbers.
            AllocationError: it does not fit in memory.
        """
        plan = self.plan_cache(capacity_tokens, row_dtype=row_dtype)
        return Cache(plan, self.fingerprint(row_dtype=row_dtype))

    def load_cache(
        self, path: str | PathLike[str], capacity_tokens: int, *, row_dtype: str = "bfloat16"
    ) -> SavedCache:
        """A cache of this model from a file; see :func:`mlx_dsv4.cache.load_cache`.

        Args:
            path: Of a file from :func:`mlx_dsv4.cache.save_cache`.
            capacity_tokens: As in :meth:`make_cache`; at least what the file holds.
            row_dtype: As in :meth:`make_cache`; that of the file.

        Raises:
            OSError, FileFormatError, SnapshotError, PlanError, AllocationError: as there.
        """
        plan = self.plan_cache(capacity_tokens, row_dtype=row_dtype)
        return load_cache(path, plan, self.fingerprint(row_dtype=row_dtype))

    def prefill(self, tokens: Sequence[int], cache: Cache) -> mx.array:
        """Append one or more tokens at the cache's cursor, wherever it stands.

        Args:
            tokens: Ids, each below the vocabulary size.
            cache: Of this model; its position moves by ``len(tokens)``.

        Returns:
            Hidden state ``[T, streams, hidden]`` float32, evaluated.

        Raises:
            PromptError: no token, or an id outside the vocabulary; nothing has changed.
            ClosedError: the model has been closed; nothing has changed.
            CacheStateError: the cache is poisoned, too small or another model's; nothing has
                changed.
        """
        return self.advance([(tokens, cache)])[0]

    def advance(self, calls: Sequence[tuple[Sequence[int], Cache]]) -> list[mx.array]:
        """Append tokens to several caches at once, each at its own cursor.

        Each cache and state is, to the bit, what :meth:`prefill` alone would have made; weights are
        read once for all of them.

        Args:
            calls: (tokens, cache), each cache once; as in :meth:`prefill`. Rows of one dtype.

        Returns:
            Hidden states ``[T, streams, hidden]`` float32 in the order of the calls, evaluated.

        Raises:
            PromptError, ClosedError, CacheStateError: as :meth:`prefill`; nothing has changed.
        """
        ids = [self.check_tokens(tokens) for tokens, _ in calls]
        caches = [cache for _, cache in calls]
        self._check_batch(caches)
        weights, layers = self._open()
        # Before the first of them begins, so that one that cannot leaves the others as they are.
        for tokens, cache in zip(ids, caches, strict=True):
            cache.plan_step(len(tokens))
        buffers = [cache.layers for cache in caches]
        joined = mx.array([token for tokens in ids for token in tokens], mx.int32)
        with mx.stream(self.device), ExitStack() as stack:
            steps = [
                stack.enter_context(cache.step(len(tokens)))
                for tokens, cache in zip(ids, caches, strict=True)
            ]
            batch = Batch(self._rope, steps, buffers)
            state = self._forward(layers, joined, weights.embedding.rows(joined), batch)
            mx.eval(state, [cache.handles() for cache in caches])
            return [state[tokens] for tokens in batch.tokens]

    def step(self, token: int | mx.array, cache: Cache) -> mx.array:
        """Append one token without waiting for the result.

        Args:
            token: An id, or an integer array of one that may still be computing. One that turns
                out to be outside the vocabulary gives a state, and a cache, full of NaN.
            cache: Of this model; its position moves by 1. If evaluating the result fails,
                poison it.

        Returns:
            Hidden state ``[1, streams, hidden]`` float32, being evaluated.

        Raises:
            PromptError, CacheStateError: as :meth:`prefill`.
            ValueError: a ``[1]`` int32 array that is known holds an id outside the vocabulary.
        """
        self._check_batch([cache])
        weights, layers = self._open()
        with mx.stream(self.device):
            ids = self._token(token)
            x = weights.embedding.rows(ids)
            with cache.step(1) as step:
                state = self._forward(layers, ids, x, Batch(self._rope, [step], [cache.layers]))
                mx.async_eval(state, cache.handles())
        return state

    def logits(self, state: mx.array) -> mx.array:
        """Logits ``[T, vocab]`` float32 of hidden state ``[T, streams, hidden]``; stateless."""
        weights, _ = self._open()
        head = weights.head
        with mx.stream(self.device):
            x = ops.hyper_head(
                state,
                head.fn,
                head.base,
                head.scale,
                head.norm,
                norm_eps=self.config.norm_eps,
                hyper_eps=self.config.hyper_eps,
            )
            return weights.output(x)

    @cached_property
    def _weights_digest(self) -> str:
        return self._weights.digest()

    @staticmethod
    def last_token_state(state: mx.array) -> mx.array:
        """The hidden state ``[1, streams, hidden]`` of the newest token."""
        return state[-1:]

    def check_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The ids as Python ints, if a call can read them.

        Raises:
            PromptError: no token, one that is no integer, or an id outside the vocabulary; names
                the first one.
        """
        ids = check_token_ids(tokens, self.config.vocab)
        if not ids:
            raise PromptError("at least one token is needed; got none")
        return ids

    def _check_batch(self, caches: Sequence[Cache]) -> None:
        """Refuse rows of another model: attending to them would give an answer of neither."""
        for cache in caches:
            mine = self.fingerprint(row_dtype=cache.plan.row_dtype)
            if cache.fingerprint != mine:
                wrong = "; ".join(differences(mine.fields(), cache.fingerprint.fields()))
                raise CacheStateError(f"the cache must be of this model: {wrong}")
        if len({id(cache) for cache in caches}) < len(caches):
            raise CacheStateError("a call must have each cache once; got one twice")
        dtypes = sorted({cache.plan.row_dtype for cache in caches})
        if len(dtypes) != 1:
            raise CacheStateError(
                f"a call needs caches, of one row dtype; got {' and '.join(dtypes) or 'none'}"
            )

    def _token(self, token: int | mx.array) -> mx.array:
        """One id as ``[1]`` int32."""
        if not isinstance(token, mx.array):
            return mx.array(self.check_tokens([token]), mx.int32)
        if token.size != 1 or not mx.issubdtype(token.dtype, mx.integer):
            raise PromptError(
                f"a token must be an array of one integer; got {token.dtype} {token.shape}"
            )
        # An array that is already as it must be stays known, and is checked at the op's door.
        ids = token if token.dtype == mx.int32 else token.astype(mx.int32)
        return ids if ids.ndim == 1 else ids.reshape(1)

    def _forward(self, layers: Layers, tokens: mx.array, x: mx.array, batch: Batch) -> mx.array:
        """Streams after the last layer; ``x`` ``[T, hidden]`` are the embedded tokens."""
        config = self.config
        streams = mx.repeat(x[:, None, :], config.streams, axis=1)
        for index, (weights, attention, feed_forward) in enumerate(layers):
            x, post, comb = self._enter(streams, weights.attention.hyper)
            y = attention(x, batch.parts(index), batch.rotations[config.ratios[index]])
            streams = ops.hyper_post(streams, y, post, comb)
            x, post, comb = self._enter(streams, weights.feed_forward.hyper)
            streams = ops.hyper_post(streams, feed_forward(x, tokens), post, comb)
        return streams

    def _enter(
        self, streams: mx.array, weights: HyperWeights
    ) -> tuple[mx.array, mx.array, mx.array]:
        return ops.hyper_pre(
            streams,
            weights.fn,
            weights.base,
            weights.scale,
            weights.norm,
            norm_eps=self.config.norm_eps,
            hyper_eps=self.config.hyper_eps,
            iterations=self.config.sinkhorn_iterations,
        )
