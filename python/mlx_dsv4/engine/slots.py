"""The slots of an engine: which one a request gets, and from where it goes on."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mlx_dsv4.cache import CacheStore, Snapshot
from mlx_dsv4.engine.events import Reuse
from mlx_dsv4.engine.reuse import common_prefix, worth_keeping, worth_saving
from mlx_dsv4.engine.slot import Slot
from mlx_dsv4.errors import AllocationError, SlotError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Branch:
    """A position that another slot has kept."""

    slot: Slot
    anchor: Snapshot


class Slots:
    """A fixed number of places for sessions over one model.

    Args:
        slots: All of them.
        store: Saved caches on disk, the second level; None if there is none.
    """

    def __init__(self, slots: Sequence[Slot], store: CacheStore | None) -> None:
        self._slots = slots
        self._store = store
        self._requests = 0

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def hold(self) -> Slot:
        """A slot for a session alone: an empty one, else the least recently used; it still has
        what it held.

        Raises:
            SlotError: each is held by a session, or busy.
        """
        free = self.idle()
        if not free:
            held = sum(slot.held_by_session for slot in self._slots)
            raise SlotError(
                f"a session needs a slot of its own; of {len(self._slots)} slots {held} are held "
                f"by sessions and the others are busy: close a session, or load the engine with "
                f"more slots"
            )
        slot = min(free, key=lambda s: (len(s.ledger) > 0, s.used))
        slot.held_by_session = True
        return slot

    def check_free(self) -> None:
        """Refuse a request that no slot will ever be free for.

        Raises:
            SlotError: every slot is held by a session.
        """
        if all(slot.held_by_session for slot in self._slots):
            raise SlotError(
                f"a request needs a slot that no session holds; all {len(self._slots)} are held: "
                f"use a session, close one, or load the engine with more slots"
            )

    def choose(self, prompt: Sequence[int]) -> Slot | None:
        """The slot for a request: the longest reusable prefix among the idle ones, else an empty
        one, else the least recently used; None if none is idle."""
        idle = self.idle()
        if not idle:
            return None
        reusable = {slot.index: slot.match(prompt).tokens for slot in idle}
        best = max(idle, key=lambda slot: (reusable[slot.index], slot.used))
        if reusable[best.index]:
            return best
        return min(idle, key=lambda s: (len(s.ledger) > 0, s.used))

    def begin(self, slot: Slot, prompt: Sequence[int], needed_tokens: int) -> Reuse:
        """Bring a slot to where most of a prompt has been computed already.

        Its own tokens come first, then positions that other slots have kept, then saved caches;
        a later one must save more than the earlier ones.

        Raises:
            AllocationError: there is no memory to grow; the slot is as it was.
        """
        self._requests += 1
        slot.used = self._requests
        while True:
            try:
                return self._begin(slot, prompt, needed_tokens)
            except AllocationError:
                if not self._give_up_one(but=slot):
                    raise

    def _begin(self, slot: Slot, prompt: Sequence[int], needed_tokens: int) -> Reuse:
        reuse = slot.match(prompt)
        branch = self._best_branch(slot, prompt, reuse)
        if branch is not None:
            reuse = replace(
                reuse,
                kind="branch",
                tokens=branch.anchor.position,
                reason=f"slot {branch.slot.index} has kept the position {branch.anchor.position}",
            )
        if self._take_saved(slot, prompt, reuse, needed_tokens):
            found = f"a saved cache has its first {slot.position} tokens"
            return replace(reuse, kind="disk", tokens=slot.position, reason=found)
        # Also where no more than a beginning is shared, such as BOS: it is another conversation.
        if reuse.kind == "branch" or not worth_saving(reuse.tokens):
            self.keep(slot)
        if branch is not None:
            slot.branch_from(branch.slot, branch.anchor, needed_tokens)
        else:
            slot.begin(prompt, reuse, needed_tokens)
        return reuse

    def _give_up_one(self, *, but: Slot) -> bool:
        """Free the memory of the idle slot that was used least recently; whether there was one."""
        holding = [slot for slot in self.idle() if slot is not but and slot.cache is not None]
        for slot in sorted(holding, key=lambda slot: slot.used)[:1]:
            self.keep(slot)
            slot.clear()
        return bool(holding)

    def keep(self, slot: Slot) -> None:
        """Save what a slot holds to disk, if there is a store."""
        if self._store is not None and worth_saving(len(slot.ledger)):
            slot.save_to(self._store)

    def idle(self) -> list[Slot]:
        """Those that anybody may have; not one that a closed session's requests wait for."""
        return [s for s in self._slots if not (s.busy or s.held_by_session or s.awaited)]

    def _best_branch(self, slot: Slot, prompt: Sequence[int], reuse: Reuse) -> Branch | None:
        """The deepest position of another slot that saves more than ``reuse``."""
        best, most = None, reuse.tokens
        for other in self._slots:
            if other is slot or other.cache is None or not other.held().usable:
                continue
            same = min(common_prefix(prompt, other.ledger), len(prompt) - 1)
            for anchor in other.cache.anchors:
                if most < anchor.position <= same and worth_keeping(anchor.position, len(prompt)):
                    best, most = Branch(other, anchor), anchor.position
        return best

    def _take_saved(
        self, slot: Slot, prompt: Sequence[int], reuse: Reuse, needed_tokens: int
    ) -> bool:
        """Whether a saved cache that saves more than ``reuse`` is now in the slot."""
        if self._store is None:
            return False
        try:
            return self._take_from(self._store, slot, prompt, reuse, needed_tokens)
        except OSError as error:
            _log.warning("slot %d reads no saved cache: %s", slot.index, error)
            return False

    def _take_from(
        self,
        store: CacheStore,
        slot: Slot,
        prompt: Sequence[int],
        reuse: Reuse,
        needed_tokens: int,
    ) -> bool:
        model, row_dtype = slot.model, slot.row_dtype
        fingerprint = model.fingerprint(row_dtype=row_dtype)
        file = store.find(prompt, fingerprint)
        if file is None:
            return False
        file.close()
        if file.position <= reuse.tokens or not worth_keeping(file.position, len(prompt)):
            return False
        plan = model.plan_cache(
            min(max(needed_tokens, len(prompt)), slot.context), row_dtype=row_dtype
        )
        saved = store.load(prompt, plan, fingerprint)
        if saved is None or saved.cache.position <= reuse.tokens:
            return False
        self.keep(slot)
        slot.take(saved, needed_tokens)
        slot.saved = list(saved.tokens)
        return True
