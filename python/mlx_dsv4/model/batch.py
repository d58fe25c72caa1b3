"""Whose tokens are whose in a call that reads tokens for several caches."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlx_dsv4.cache import LayerCache, SpanPlan, Step
from mlx_dsv4.model.rope import Rope


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens of one cache in one layer of a call.

    Attributes:
        layer: The cache's buffers.
        span: Where they are written, and what is readable afterwards.
        rotation: ``[n closed, R/2, 2]`` float32, of the rows that the tokens close.
        tokens: Which of the call's tokens these are; None if all.
    """

    layer: LayerCache
    span: SpanPlan
    rotation: mx.array
    tokens: slice | None

    def of(self, x: mx.array) -> mx.array:
        """The rows of ``x`` ``[T, ...]`` that belong to these tokens."""
        return x if self.tokens is None else x[self.tokens]


class Batch:
    """The steps of several caches side by side: one call, one answer for each.

    Args:
        rope: Of the model.
        steps: Each of another cache, in the order of the call's tokens.
        layers: The buffers of each cache, by layer.

    Attributes:
        rotations: ``[T, R/2, 2]`` float32 by ratio, of all tokens.
    """

    def __init__(
        self, rope: Rope, steps: Sequence[Step], layers: Sequence[Sequence[LayerCache]]
    ) -> None:
        self._steps = steps
        self._layers = layers
        self.rotations = rope.of_tokens(steps)
        self._closed = [rope.of_closed_rows(step) for step in steps]
        ends = [sum(step.n_tokens for step in steps[: i + 1]) for i in range(len(steps))]
        self.tokens = [
            slice(end - step.n_tokens, end) for step, end in zip(steps, ends, strict=True)
        ]

    def parts(self, index: int) -> list[Part]:
        """What each cache has of the call in layer ``index``."""
        parts: list[Part] = []
        for i, step in enumerate(self._steps):
            layer = self._layers[i][index]
            tokens = self.tokens[i] if len(self._steps) > 1 else None
            parts.append(Part(layer, step.spans[layer.ratio], self._closed[i][layer.ratio], tokens))
        return parts
