"""Which of the positions that a session can go on from saves most of a prompt: pure rules."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mlx_dsv4.engine.events import Reuse

LEAST_CACHED_TOKENS = 128  # fewer are sooner computed again, unless little remains
FEW_REMAINING_TOKENS = 32
BOS_TOKENS = 1  # that every prompt begins with
ANCHOR_BEFORE_END_TOKENS = 8  # a prompt's end is rendered differently on the next turn


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    n = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(different[0]) if different.size else n


def worth_keeping(cached: int, n_prompt: int) -> bool:
    """Whether going on after ``cached`` tokens is faster than to begin empty."""
    few_remain = n_prompt - cached <= FEW_REMAINING_TOKENS
    return cached > 0 and (few_remain or cached >= LEAST_CACHED_TOKENS)


def worth_saving(n_tokens: int) -> bool:
    """Whether going on after so many tokens is faster for prompts of any length."""
    return n_tokens >= LEAST_CACHED_TOKENS


@dataclass(frozen=True, slots=True)
class Held:
    """What a session can go on from.

    Attributes:
        ledger: The tokens in its cache, exactly.
        anchors: Positions on the ledger that it can go back to.
        has_logits: Whether it knows what comes after the last of them.
        usable: Whether the cache answers, and is where the ledger says.
    """

    ledger: Sequence[int]
    anchors: Iterable[int] = ()
    has_logits: bool = False
    usable: bool = True


def choose(prompt: Sequence[int], held: Held) -> Reuse:
    """What of a prompt a session need not compute: live, else the deepest anchor, else nothing."""
    if not held.usable:
        return Reuse("reset", 0, None, "the cache is poisoned, or not where its tokens say")
    n = len(held.ledger)
    same = common_prefix(prompt, held.ledger)
    if n == 0:
        return Reuse("reset", 0, None, "the session is empty")
    if same == n and (n < len(prompt) or held.has_logits):
        if worth_keeping(n, len(prompt)):
            return Reuse("live", n, None, f"the session's {n} tokens begin the prompt")
        return Reuse("reset", 0, None, f"the session's {n} tokens are too few to keep")
    diverged = same if same < min(n, len(prompt)) else None
    where = f"the prompt diverges at token {same}"
    if diverged is None:
        where = "the prompt ends inside what is held, and the logits after it are gone"
    deepest = max((at for at in held.anchors if at <= same and at < len(prompt)), default=0)
    if worth_keeping(deepest, len(prompt)):
        on = f"{where}; reading goes on from the anchor at {deepest}"
        return Reuse("anchor", deepest, diverged, on)
    if diverged is not None and same <= BOS_TOKENS:
        return Reuse("reset", 0, diverged, "nothing of the prompt is held")
    if deepest:
        why = f"{where}; the anchor at {deepest} has too few tokens to keep"
    else:
        why = f"{where}; no anchor is before it"
    return Reuse("reset", 0, diverged, why)


def anchor_positions(n_prompt: int, hints: Iterable[int] = ()) -> list[int]:
    """Where a session keeps anchors while it reads a prompt, ascending.

    Args:
        n_prompt: Tokens of the prompt.
        hints: Positions that other prompts may share, such as the end of system text.
    """
    end = n_prompt - ANCHOR_BEFORE_END_TOKENS
    return sorted({at for at in (*hints, end) if 0 < at <= end})
