"""The cache of one session: plan, work, commit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx

from mlx_dsv4.cache.layer import LayerCache
from mlx_dsv4.cache.plan import CachePlan, SpanPlan, plan_span
from mlx_dsv4.errors import AllocationError, CacheStateError, PlanError
from mlx_dsv4.memory import available_bytes


@dataclass(frozen=True, slots=True)
class Step:
    """One call on a cache: the tokens it appends, and where each kind of layer writes."""

    start: int
    n_tokens: int
    spans: dict[int, SpanPlan]  # by ratio


class Cache:
    """Everything a session remembers of its tokens; the only mutable state of a model.

    A call is planned (pure), its work is submitted, then it is committed. A failure after work
    was submitted poisons the cache: part of the buffers may be written, so that it answers
    nothing until :meth:`reset`.

    Args:
        plan: Sizes, from :func:`plan_cache`.

    Raises:
        AllocationError: the planned bytes are not available on this machine.
        PlanError: the buffers made do not add up to the planned bytes.
    """

    def __init__(self, plan: CachePlan) -> None:
        available = available_bytes()
        if available is not None and plan.n_bytes > available:
            raise AllocationError(
                f"cache of {plan.capacity_tokens} tokens needs {plan.n_bytes} bytes; "
                f"{available} are available on this machine: choose a smaller context"
            )
        self.plan = plan
        self.layers = tuple(LayerCache(layer) for layer in plan.layers)
        self.position = 0
        self._poison: str | None = None
        self._submitted = self.handles()
        mx.eval(self._submitted)
        held = self.held_bytes()
        if held != plan.n_bytes:
            raise PlanError(f"planned {plan.n_bytes} bytes of cache, allocated {held}")

    @property
    def capacity_tokens(self) -> int:
        return self.plan.capacity_tokens

    @property
    def poisoned(self) -> bool:
        return self._poison is not None

    def held_bytes(self) -> int:
        """Bytes of the buffers as they are, to compare with the plan."""
        return sum(handle.nbytes for handle in self.handles())

    def handles(self) -> list[mx.array]:
        """Every buffer of every layer."""
        return [handle for layer in self.layers for handle in layer.handles()]

    def plan_step(self, n_tokens: int) -> Step:
        """Where a call of ``n_tokens`` tokens at the cursor writes; changes nothing.

        Raises:
            CacheStateError: the cache is poisoned, or the tokens do not fit.
        """
        self._check_usable()
        spans = {
            layer.ratio: plan_span(
                self.position,
                n_tokens,
                capacity_tokens=self.capacity_tokens,
                window=layer.window,
                ratio=layer.ratio,
            )
            for layer in self.layers
        }
        return Step(self.position, n_tokens, spans)

    @contextmanager
    def step(self, n_tokens: int) -> Iterator[Step]:
        """Plan, run the body, commit. Whatever the body raises poisons the cache first."""
        step = self.plan_step(n_tokens)
        try:
            yield step
        except BaseException as error:
            self.poison(f"{type(error).__name__} at positions {step.start}..: {error}")
            raise
        self.commit(step.start, n_tokens)

    def commit(self, start: int, n_tokens: int) -> None:
        """Make ``n_tokens`` tokens at ``start`` part of the session.

        Raises:
            CacheStateError: poisoned, ``start`` is not the cursor, or past the capacity.
        """
        self._check_usable()
        if start != self.position:
            raise CacheStateError(f"a commit must start at the cursor {self.position}; got {start}")
        if n_tokens < 1 or start + n_tokens > self.capacity_tokens:
            raise CacheStateError(
                f"a commit must end in {start + 1}..{self.capacity_tokens}; got {start + n_tokens}"
            )
        self.position += n_tokens
        self._submitted = self.handles()

    def poison(self, reason: str) -> None:
        """Declare the buffers unusable; the first reason is kept."""
        self._poison = self._poison or reason

    def reset(self) -> None:
        """Forget every token: position 0, values 0, scores -inf, not poisoned."""
        # Work in flight may still write; what a failed call built was never submitted.
        mx.eval(self._submitted)
        for layer in self.layers:
            layer.reset()
        self._submitted = self.handles()
        mx.eval(self._submitted)
        self.position = 0
        self._poison = None

    def _check_usable(self) -> None:
        if self._poison is not None:
            raise CacheStateError(f"cache is poisoned ({self._poison}); reset it to go on")
