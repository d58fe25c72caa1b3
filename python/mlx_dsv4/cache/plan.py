"""Sizes and positions of a cache: pure arithmetic, checked before anything is allocated."""

import operator
from dataclasses import dataclass
from math import prod

from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import CacheStateError, PlanError

WINDOW = 128
RATIOS = (0, 4, 128)
INDEXER_RATIO = 4  # the ratio whose layers choose among their compressed rows
ROW_BYTES = {"bfloat16": 2, "float32": 4}
STATE_PARTS = ("value", "score")
STATE_NAMES = {f"{kind}_{part}" for kind in ("compressor", "indexer") for part in STATE_PARTS}
GROWTH_TOKENS = 131_072
MAX_BYTES = 2**48  # what the address space of today's machines holds


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """One buffer: its name, shape, dtype ("bfloat16" or "float32") and bytes."""

    name: str
    shape: tuple[int, int]
    dtype: str

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * ROW_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The buffers of one layer.

    ``attention_kv`` holds the window ring in rows ``[0, window)`` and compressed row r in row
    ``window + r``; ``indexer_kv`` holds index row r in row r.
    """

    ratio: int
    window: int
    buffers: tuple[BufferPlan, ...]

    @property
    def n_bytes(self) -> int:
        return sum(buffer.n_bytes for buffer in self.buffers)

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a whole window and the states, whatever the capacity."""
        ring = self.buffers[0]
        states = sum(b.n_bytes for b in self.buffers if b.name in STATE_NAMES)
        return WINDOW * ring.shape[1] * ROW_BYTES[ring.dtype] + states

    def closed_bytes(self, position: int) -> dict[str, int]:
        """Bytes of the rows of closed spans after ``position`` tokens, by kind."""
        n_rows = position // self.ratio if self.ratio else 0
        kinds = {"attention_kv": "compressed", "indexer_kv": "indexer"}
        return {
            kinds[b.name]: n_rows * b.shape[1] * ROW_BYTES[b.dtype]
            for b in self.buffers
            if b.name in kinds
        }


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Every buffer of a cache of ``capacity_tokens`` tokens."""

    config: ModelConfig
    capacity_tokens: int
    row_dtype: str
    layers: tuple[LayerPlan, ...]

    @property
    def n_bytes(self) -> int:
        return sum(layer.n_bytes for layer in self.layers)

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a snapshot at any position and capacity."""
        return sum(layer.snapshot_bytes for layer in self.layers)

    def grown(self, capacity_tokens: int) -> "CachePlan":
        """The plan of the same cache for more tokens.

        Raises:
            PlanError: fewer tokens than planned here, or more than the model's context.
        """
        if _integer(capacity_tokens) < self.capacity_tokens:
            raise PlanError(
                f"a cache grows: capacity must be at least {self.capacity_tokens} tokens; "
                f"got {capacity_tokens}"
            )
        return plan_cache(self.config, capacity_tokens, row_dtype=self.row_dtype)


def grown_capacity(capacity_tokens: int, needed_tokens: int, *, context: int) -> int:
    """The capacity for ``needed_tokens``: steps of 131,072 tokens, up to the serving context.

    Args:
        capacity_tokens: Of the cache as it is; kept if it suffices.
        needed_tokens: Positions that will be written: prompt + max_tokens - 1.
        context: Most tokens that are served; what is needed beyond it is not granted.
    """
    if needed_tokens <= capacity_tokens:
        return capacity_tokens
    steps = -(-needed_tokens // GROWTH_TOKENS)
    return max(capacity_tokens, min(steps * GROWTH_TOKENS, context))


def compressor_state_shape(ratio: int, dim: int) -> tuple[int, int]:
    """``[8, 2 * dim]`` at ratio 4, where spans overlap; ``[ratio, dim]`` otherwise."""
    return (2 * ratio, 2 * dim) if ratio == INDEXER_RATIO else (ratio, dim)


def plan_cache(
    config: ModelConfig, capacity_tokens: int, *, row_dtype: str = "bfloat16"
) -> CachePlan:
    """Plan the buffers for ``capacity_tokens`` tokens.

    Args:
        config: Numbers of the model.
        capacity_tokens: Positions the cache can hold, 1 to the model's context.
        row_dtype: "bfloat16" or "float32".

    Raises:
        PlanError: names the layer or number that no cache can be planned for.
    """
    capacity_tokens = _integer(capacity_tokens)
    _check(config, capacity_tokens, row_dtype)
    layers = tuple(
        _plan_layer(config, index, ratio, capacity_tokens, row_dtype)
        for index, ratio in enumerate(config.ratios)
    )
    plan = CachePlan(config, capacity_tokens, row_dtype, layers)
    if plan.n_bytes > MAX_BYTES:
        raise PlanError(
            f"cache of {capacity_tokens} tokens needs {plan.n_bytes} bytes; "
            f"at most {MAX_BYTES} can be addressed"
        )
    return plan


def _integer(capacity_tokens: object) -> int:
    try:
        return operator.index(capacity_tokens)  # type: ignore[arg-type]
    except TypeError:
        raise PlanError(f"context must be an integer; got {capacity_tokens!r}") from None


def _check(config: ModelConfig, capacity_tokens: int, row_dtype: str) -> None:
    if row_dtype not in ROW_BYTES:
        raise PlanError(f"row dtype must be one of {', '.join(ROW_BYTES)}; got {row_dtype}")
    if capacity_tokens < 1:
        raise PlanError(f"context must be at least 1 token; got {capacity_tokens}")
    if capacity_tokens > config.context:
        raise PlanError(
            f"context must be at most the model's {config.context} tokens; got {capacity_tokens}"
        )
    if config.window != WINDOW:
        raise PlanError(f"sliding window must be {WINDOW} rows; got {config.window}")
    if len(config.ratios) != config.layers:
        raise PlanError(
            f"one compress ratio per layer is needed: {config.layers} layers, "
            f"{len(config.ratios)} ratios"
        )


def _plan_layer(
    config: ModelConfig, index: int, ratio: int, capacity_tokens: int, row_dtype: str
) -> LayerPlan:
    if ratio not in RATIOS:
        raise PlanError(f"layer {index}: compress ratio must be 0, 4 or 128; got {ratio}")
    window = min(capacity_tokens, config.window)
    n_rows = capacity_tokens // ratio if ratio else 0
    buffers = [BufferPlan("attention_kv", (window + n_rows, config.head_dim), row_dtype)]
    if ratio:
        shape = compressor_state_shape(ratio, config.head_dim)
        buffers += [BufferPlan(f"compressor_{part}", shape, "float32") for part in STATE_PARTS]
    if ratio == INDEXER_RATIO:
        shape = compressor_state_shape(ratio, config.indexer_dim)
        buffers += [BufferPlan("indexer_kv", (n_rows, config.indexer_dim), row_dtype)]
        buffers += [BufferPlan(f"indexer_{part}", shape, "float32") for part in STATE_PARTS]
    return LayerPlan(ratio, window, tuple(buffers))


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """Where one call that appends positions ``[start, end)`` writes in a layer, and what is
    readable after it."""

    start: int
    end: int
    window_slot: int  # ring slot of position `start`
    window_source: int  # first of the call's rows that the ring keeps
    window_valid: int  # readable ring rows afterwards
    compressed_start: int  # first compressed row that the call closes
    compressed_count: int
    compressed_valid: int  # readable compressed rows afterwards

    @property
    def window_first_pos(self) -> int:
        """Oldest position the ring holds afterwards."""
        return self.end - self.window_valid


def plan_span(
    start: int, n_tokens: int, *, capacity_tokens: int, window: int, ratio: int
) -> SpanPlan:
    """Plan a call of ``n_tokens`` tokens at ``start``; neither needs any alignment.

    Args:
        start: Position of the first token.
        n_tokens: Tokens in the call, at least 1.
        capacity_tokens: Positions the cache can hold.
        window: Ring rows of the layer.
        ratio: Tokens per span, 0 for a layer without compressed rows.

    Raises:
        CacheStateError: the call is empty or reaches past the capacity.
    """
    if not isinstance(n_tokens, int):
        raise CacheStateError(f"a step needs a whole number of tokens; got {n_tokens!r}")
    end = start + n_tokens
    if n_tokens < 1 or start < 0:
        raise CacheStateError(
            f"a step needs at least 1 token at a position >= 0; got {n_tokens} at {start}"
        )
    if end > capacity_tokens:
        raise CacheStateError(
            f"{n_tokens} tokens at position {start} reach past the cache's {capacity_tokens} "
            f"tokens: grow it, or make a larger one"
        )
    first_row = start // ratio if ratio else 0
    rows = end // ratio if ratio else 0
    return SpanPlan(
        start=start,
        end=end,
        window_slot=start % window,
        window_source=n_tokens - min(n_tokens, window),
        window_valid=min(end, window),
        compressed_start=first_row,
        compressed_count=rows - first_row,
        compressed_valid=rows,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One call on a cache: the tokens it appends, and where each kind of layer writes."""

    start: int
    n_tokens: int
    spans: dict[int, SpanPlan]  # by ratio


def plan_step(plan: CachePlan, start: int, n_tokens: int) -> Step:
    """Plan a call of ``n_tokens`` tokens at ``start`` in every kind of layer.

    Raises:
        CacheStateError: as :func:`plan_span`.
    """
    spans = {
        layer.ratio: plan_span(
            start,
            n_tokens,
            capacity_tokens=plan.capacity_tokens,
            window=layer.window,
            ratio=layer.ratio,
        )
        for layer in plan.layers
    }
    return Step(start, n_tokens, spans)
