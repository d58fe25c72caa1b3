"""The place of one session: a cache, the tokens in it, and where it can go back to."""

import logging
from collections.abc import Sequence
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache import (
    Cache,
    CacheStore,
    SavedCache,
    SavedFile,
    Snapshot,
    grown_capacity,
    save_cache,
)
from mlx_dsv4.cache.plan import GROWTH_TOKENS
from mlx_dsv4.engine.events import Reuse
from mlx_dsv4.engine.reuse import Held, choose, worth_saving
from mlx_dsv4.errors import Dsv4Error
from mlx_dsv4.model import Model

LEAST_CAPACITY_TOKENS = 4096

_log = logging.getLogger(__name__)


def slot_capacity(capacity_tokens: int, needed_tokens: int, *, context: int) -> int:
    """The capacity for ``needed_tokens``: doubled up to 131,072 tokens, from there on in steps of
    as many; see :func:`mlx_dsv4.cache.grown_capacity`."""
    if capacity_tokens < needed_tokens <= GROWTH_TOKENS:
        return min(max(1 << (needed_tokens - 1).bit_length(), LEAST_CAPACITY_TOKENS), context)
    return grown_capacity(capacity_tokens, needed_tokens, context=context)


class Slot:
    """A cache and what is known of it. Used by the thread that runs the model, alone.

    Args:
        index: Among the engine's slots.
        model: Shared by all of them.
        context: Most tokens that its cache may grow to.
        row_dtype: Of the cache.
        anchor_bytes: Most bytes of kept snapshots; the least recently used go first.

    Attributes:
        ledger: The tokens in the cache, exactly.
        logits: ``[vocab]`` float32 of the token after them; None where they are not known.
        held_by_session: Whether a session has it for itself.
        busy: Whether a generation runs in it.
        awaited: How many requests and errands wait for it alone.
        used: Number of the last request that ran in it.
        saved: Tokens of the ledger that the disk store has.
    """

    def __init__(
        self, index: int, model: Model, *, context: int, row_dtype: str, anchor_bytes: int
    ) -> None:
        self.index = index
        self.model = model
        self.context = context
        self.row_dtype = row_dtype
        self.anchor_bytes = anchor_bytes
        self.cache: Cache | None = None
        self.ledger: list[int] = []
        self.logits: NDArray[np.float32] | None = None
        self.held_by_session = False
        self.busy = False
        self.awaited = 0
        self.used = 0
        self.saved: list[int] | None = None
        self._anchor_use: dict[int, int] = {}

    @property
    def capacity_tokens(self) -> int:
        return self.cache.capacity_tokens if self.cache else 0

    @property
    def position(self) -> int:
        return self.cache.position if self.cache else 0

    def held_bytes(self) -> int:
        """Bytes of its cache and snapshots."""
        return self.cache.held_bytes() + self._anchor_bytes() if self.cache else 0

    def held(self) -> Held:
        """What the rules of reuse need to know."""
        cache = self.cache
        usable = cache is None or (not cache.poisoned and cache.position == len(self.ledger))
        anchors = tuple(a.position for a in cache.anchors) if cache else ()
        return Held(self.ledger, anchors, self.logits is not None, usable)

    def match(self, prompt: Sequence[int]) -> Reuse:
        """What of a prompt need not be computed here."""
        return choose(prompt, self.held())

    def begin(self, prompt: Sequence[int], reuse: Reuse, needed_tokens: int) -> None:
        """Go to the position from which the prompt is read on, with room for what is needed.

        Args:
            prompt: Token ids.
            reuse: From :meth:`match` of the same prompt.
            needed_tokens: Positions that will be written.

        Raises:
            AllocationError: there is no memory to grow; nothing has changed.
        """
        if reuse.kind == "reset":
            self._begin_empty(needed_tokens)
        else:
            # First, while nothing that is held has been given up.
            self.grow(needed_tokens)
        if reuse.kind == "anchor":
            assert self.cache is not None
            (anchor,) = (a for a in self.cache.anchors if a.position == reuse.tokens)
            self.cache.restore(anchor)
            self._anchor_use[anchor.position] = self.used
            del self.ledger[anchor.position :]
        if len(self.ledger) < len(prompt):
            self.logits = None

    def branch_from(self, other: "Slot", anchor: Snapshot, needed_tokens: int) -> None:
        """Take over a position that another slot has kept, in place of what is held.

        Raises:
            AllocationError: there is no memory; nothing has changed.
        """
        assert other.cache is not None
        cache = other.cache.branch(anchor)
        cache.grow(max(self._capacity_for(needed_tokens), cache.capacity_tokens))
        # Its buffers now, not in a step that others take part in and that would fail with it.
        assert cache.layers
        self._replace(cache, other.ledger[: anchor.position], None)
        self.anchor()

    def take(self, saved: SavedCache, needed_tokens: int) -> None:
        """Go on from a saved cache, in place of what is held.

        Raises:
            AllocationError: there is no memory to grow; nothing has changed.
        """
        capacity = self._capacity_for(max(needed_tokens, saved.cache.position))
        saved.cache.grow(max(capacity, saved.cache.capacity_tokens))
        logits = None if saved.logits is None else np.array(saved.logits, np.float32)
        self._replace(saved.cache, list(saved.tokens), logits)
        if self.position:
            self.anchor()

    def clear(self) -> None:
        """Forget every token and give back the memory."""
        self._replace(None, [], None)

    def grow(self, needed_tokens: int) -> None:
        """Make room for positions up to ``needed_tokens``, as far as the context allows.

        Raises:
            AllocationError: there is no memory; nothing has changed.
        """
        capacity = self._capacity_for(needed_tokens)
        if self.cache is None:
            self.cache = self.model.make_cache(capacity, row_dtype=self.row_dtype)
        elif capacity > self.cache.capacity_tokens:
            self.cache.grow(capacity)

    def extend(self, tokens: Sequence[int]) -> None:
        """The cache has read these tokens."""
        self.ledger += tokens
        self.logits = None

    def anchor(self) -> None:
        """Keep this position, within the bytes that snapshots may have."""
        assert self.cache is not None
        if self.cache.plan.snapshot_bytes > self.anchor_bytes:
            return
        self.cache.anchor()
        self._anchor_use[self.position] = self.used
        kept = {a.position for a in self.cache.anchors}
        self._anchor_use = {at: used for at, used in self._anchor_use.items() if at in kept}
        while self._anchor_bytes() > self.anchor_bytes:
            oldest = min(self._anchor_use, key=lambda at: (self._anchor_use[at], at))
            del self._anchor_use[oldest]
            self.cache.drop_anchor(oldest)

    def save(self, path: str | PathLike[str]) -> None:
        """Write this position to a file; see :func:`mlx_dsv4.cache.save_cache`."""
        cache = self.cache or self.model.make_cache(1, row_dtype=self.row_dtype)
        save_cache(path, cache, tokens=self.ledger, logits=self.logits)

    def load(self, path: str | PathLike[str]) -> None:
        """Go on from a file, in place of what is held; see :func:`mlx_dsv4.cache.load_cache`."""
        with SavedFile(path) as file:
            capacity = max(self._capacity_for(file.position), 1)
            plan = self.model.plan_cache(capacity, row_dtype=self.row_dtype)
            saved = file.load(plan, self.model.fingerprint(row_dtype=self.row_dtype))
        self.take(saved, 1)

    def save_to(self, store: CacheStore) -> None:
        """Keep this position and the deepest anchor on disk; the log says what goes wrong."""
        held, cache = self.held(), self.cache
        if cache is None or not held.usable or self.ledger == self.saved or not self.ledger:
            return
        before = [a for a in cache.anchors if a.position < len(self.ledger)]
        anchors = [a for a in before if worth_saving(a.position)]
        try:
            for anchor in anchors[-1:]:
                store.save(cache, tokens=self.ledger[: anchor.position], snapshot=anchor)
            store.save(cache, tokens=self.ledger, logits=self.logits)
        except (OSError, Dsv4Error) as error:
            _log.warning("slot %d is not saved: %s", self.index, error)
        self.saved = list(self.ledger)

    def _begin_empty(self, needed_tokens: int) -> None:
        capacity = self._capacity_for(needed_tokens)
        if self.cache is None or capacity > self.cache.capacity_tokens:
            self._replace(self.model.make_cache(capacity, row_dtype=self.row_dtype), [], None)
        else:
            self.cache.reset()
            self._replace(self.cache, [], None)

    def _replace(
        self, cache: Cache | None, ledger: list[int], logits: NDArray[np.float32] | None
    ) -> None:
        self.cache, self.ledger, self.logits = cache, ledger, logits
        self._anchor_use = {}
        self.saved = None

    def _capacity_for(self, needed_tokens: int) -> int:
        return slot_capacity(self.capacity_tokens, needed_tokens, context=self.context)

    def _anchor_bytes(self) -> int:
        return sum(anchor.n_bytes for anchor in self.cache.anchors) if self.cache else 0
