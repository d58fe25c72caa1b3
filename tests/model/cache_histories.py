"""Any history of caches, beside a naive model of what each of them must hold.

Rows have ids, new ones whenever a position is appended: a snapshot is valid in a cache that holds
the rows it was taken over. What a valid cache answers is what a new cache answers that reads the
same tokens and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache_contents import readable, readable_unchanged, stream_tokens
from mlx_dsv4.cache import Cache, Snapshot, load_cache, plan_cache, save_cache
from mlx_dsv4.errors import CacheStateError, PlanError, SnapshotError

_row_ids = count()

# Where positions cross ends of spans, of the ring, and the first rows that are not all selected.
MARKS = [3, 4, 5, 8, 63, 64, 67, 68, 69, 127, 128, 129, 130, 255, 256, 257]
MARKS += [383, 384, 385, 511, 512, 513]
CAPACITIES = [1, 5, 100, 127, 128, 130, 300, 520]
LONGEST = 520
MOST_CACHES = 4
STEPS = 8  # a call of at most so many tokens may be decoded one by one

GONE = "must still be in this cache|must be of this cache"
PICK = st.integers(0, 11)  # which of the things there are
CHUNKS = st.lists(st.integers(1, 140), max_size=3)


class Driver(Protocol):
    """What fills a cache: the ops alone, or a model."""

    def make(self, capacity_tokens: int) -> Cache: ...

    def append(self, tokens: Sequence[int], cache: Cache, by_steps: bool) -> object:
        """Append; returns something of each token that may still be computing."""

    def fail(self, tokens: Sequence[int], cache: Cache, at: int) -> None:
        """Append, and fail in the middle."""

    def numbers(self, states: object) -> np.ndarray:
        """What :meth:`append` returned, computed: a row of numbers a token."""


@dataclass(frozen=True)
class Kept:
    """A snapshot, and what it is a snapshot of."""

    snapshot: Snapshot
    tokens: list[int]
    rows: list[int]
    root: int


@dataclass(eq=False)
class Session:
    """A cache, the tokens it has read, and the rows that are there, those after the cursor too."""

    cache: Cache
    stream: int
    tokens: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    anchors: dict[int, list[int]] = field(default_factory=dict)
    root: int = field(default_factory=lambda: next(_row_ids))  # shared with branches alone

    def overwrite_from(self, position: int) -> None:
        del self.rows[position:]
        self.anchors = {at: rows for at, rows in self.anchors.items() if self.has(rows)}

    def append(self, tokens: list[int]) -> None:
        self.overwrite_from(len(self.tokens))
        self.rows += [next(_row_ids) for _ in tokens]
        self.tokens += tokens

    def has(self, rows: list[int]) -> bool:
        return self.rows[: len(rows)] == rows

    def holds(self, kept: Kept) -> bool:
        return self.root == kept.root and self.has(kept.rows)


class CacheHistories(RuleBasedStateMachine):
    """Rules that change caches; the naive sessions say what each must do."""

    driver: Driver

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Session] = []
        self.kept: list[Kept] = []
        self.streams = count()
        # Answers to compare with those of new caches: tokens up to the last one, and its states.
        self.answers: list[tuple[tuple[int, ...], object, int]] = []

    @initialize(
        capacity=st.sampled_from(CAPACITIES),
        marks=st.lists(st.sampled_from([0, *MARKS[:13]]), min_size=2, max_size=4),
        branches=st.integers(0, 2),
    )
    def begin(self, capacity: int, marks: list[int], branches: int) -> None:
        """A cache with snapshots of some positions, and branches: most rules are about those."""
        self.sessions.append(Session(self.driver.make(capacity), next(self.streams)))
        for mark in sorted(set(marks)):
            self.append(self.sessions[0], mark - len(self.sessions[0].tokens), [])
            self.snapshot(0)
        for which in range(branches):
            self.branch(0, which)

    def session(self, pick: int) -> Session:
        return self.sessions[pick % len(self.sessions)]

    def check(self, session: Session) -> None:
        """A cache holds what a new one holds after the same tokens."""
        cache = session.cache
        assert cache.position == len(session.tokens)
        if not cache.poisoned:
            assert readable_unchanged(cache) == self.fresh(session.tokens)[1]

    def kept_snapshot(self, session: Session, pick: int) -> Kept:
        """Any snapshot, or (more often) one that the session still holds."""
        held = [kept for kept in self.kept if session.holds(kept)]
        among = held if pick % 4 and held else self.kept
        return among[-1 - pick % len(among)]

    @rule(pick=PICK, skipped=st.integers(0, 4), chunks=CHUNKS)
    def append_up_to_a_mark(self, pick: int, skipped: int, chunks: list[int]) -> None:
        session = self.session(pick)
        start = len(session.tokens)
        ahead = [mark for mark in MARKS if mark > start][: skipped + 1]
        self.append(session, ahead[-1] - start if ahead else 1, chunks)

    @rule(pick=PICK, n_tokens=st.integers(0, 9), chunks=CHUNKS)
    def append_some(self, pick: int, n_tokens: int, chunks: list[int]) -> None:
        self.append(self.session(pick), n_tokens, chunks)

    def append(self, session: Session, n_tokens: int, chunks: list[int]) -> None:
        """Append; where there is no room, see it refused and make some."""
        start = len(session.tokens)
        end = min(start + n_tokens, LONGEST)
        tokens = stream_tokens(session.stream, start, end)
        if session.cache.poisoned or end > session.cache.capacity_tokens:
            if not tokens:
                return
            with pytest.raises(CacheStateError, match=r"poisoned|reach past"):
                self.driver.append(tokens, session.cache, by_steps=False)
            if session.cache.poisoned:
                return
            session.cache.grow(end)
        self.read(session, tokens, chunks)

    def read(self, session: Session, tokens: list[int], chunks: list[int]) -> None:
        """Append tokens in calls of these sizes, the last one of what is left."""
        while tokens:
            size = chunks[0] if chunks else len(tokens)
            part, tokens, chunks = tokens[:size], tokens[size:], chunks[1:]
            states = self.driver.append(part, session.cache, by_steps=len(part) <= STEPS)
            session.append(part)
            self.answers.append((tuple(session.tokens), states, len(part)))

    @rule(pick=PICK)
    def snapshot(self, pick: int) -> None:
        session = self.session(pick)
        if session.cache.poisoned:
            with pytest.raises(CacheStateError, match="poisoned"):
                session.cache.snapshot()
            return
        position = len(session.tokens)
        snapshot = session.cache.snapshot()
        self.kept.append(Kept(snapshot, [*session.tokens], session.rows[:position], session.root))

    @rule(pick=PICK, which=PICK)
    def restore(self, pick: int, which: int) -> None:
        session = self.session(pick)
        kept = self.kept_snapshot(session, which)
        if not session.holds(kept):
            before = session.cache.poisoned
            with pytest.raises(SnapshotError, match=GONE):
                session.cache.restore(kept.snapshot)
            assert session.cache.poisoned == before
        else:
            session.cache.restore(kept.snapshot)
            assert not session.cache.poisoned
            session.tokens = [*kept.tokens]
            session.stream = next(self.streams)
        self.check(session)

    @rule(pick=PICK, which=PICK, n_tokens=st.integers(1, 9))
    def overwrite(self, pick: int, which: int, n_tokens: int) -> None:
        """Go back and append: what most other rules must withstand."""
        self.restore(pick, which)
        self.append(self.session(pick), n_tokens, [])

    @precondition(lambda self: len(self.sessions) < MOST_CACHES)
    @rule(pick=PICK, which=PICK)
    def branch(self, pick: int, which: int) -> None:
        session = self.session(pick)
        kept = self.kept_snapshot(session, which)
        if not session.holds(kept):
            with pytest.raises(SnapshotError, match=GONE):
                session.cache.branch(kept.snapshot)
        else:
            other = Session(session.cache.branch(kept.snapshot), next(self.streams))
            other.tokens, other.rows = [*kept.tokens], [*kept.rows]
            other.root = session.root
            self.sessions.append(other)
            self.check(other)
        self.check(session)

    @precondition(lambda self: len(self.sessions) < MOST_CACHES)
    @rule(pick=PICK, which=PICK, capacity=st.sampled_from(CAPACITIES))
    def save_and_load(self, pick: int, which: int, capacity: int) -> None:
        session = self.session(pick)
        kept = self.kept_snapshot(session, which)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "cache"
            if not session.holds(kept):
                with pytest.raises(SnapshotError, match=GONE):
                    save_cache(path, session.cache, tokens=kept.tokens, snapshot=kept.snapshot)
                return
            save_cache(path, session.cache, tokens=kept.tokens, snapshot=kept.snapshot)
            plan = plan_cache(session.cache.plan.config, max(capacity, len(kept.tokens)))
            loaded = load_cache(path, plan, session.cache.fingerprint)
        assert loaded.tokens == kept.tokens
        rows = [next(_row_ids) for _ in kept.tokens]
        other = Session(loaded.cache, next(self.streams), [*kept.tokens], rows)
        self.sessions.append(other)
        self.check(other)
        self.check(session)

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(pick=PICK)
    def forget(self, pick: int) -> None:
        self.sessions.remove(self.session(pick))

    @rule(pick=PICK, capacity=st.sampled_from(CAPACITIES))
    def grow(self, pick: int, capacity: int) -> None:
        cache = self.session(pick).cache
        refusal = PlanError if capacity < cache.capacity_tokens else None
        refusal = CacheStateError if cache.poisoned else refusal
        before = cache.capacity_tokens
        if refusal:
            with pytest.raises(refusal):
                cache.grow(capacity)
        else:
            cache.grow(capacity)
        assert cache.capacity_tokens == (before if refusal else capacity)

    @rule(pick=PICK)
    def anchor(self, pick: int) -> None:
        session = self.session(pick)
        if session.cache.poisoned:
            with pytest.raises(CacheStateError, match="poisoned"):
                session.cache.anchor()
            return
        assert session.cache.anchor().position == len(session.tokens)
        session.anchors[len(session.tokens)] = session.rows[: len(session.tokens)]

    @rule(pick=PICK, place=st.integers(0, LONGEST), replays=st.booleans(), chunks=CHUNKS)
    def rewind(self, pick: int, place: int, replays: bool, chunks: list[int]) -> None:
        session = self.session(pick)
        end, poisoned = len(session.tokens), session.cache.poisoned
        near = [*session.anchors, end]
        # Any position, or (more often) one a little after an anchor.
        position = min(end, near[place % len(near)] + place % 4 if place % 3 else place)
        tokens = [*session.tokens]

        def replay(start: int, end: int) -> None:
            session.tokens = tokens[:start]
            self.read(session, tokens[start:end], chunks)

        nearest = max((at for at in session.anchors if at <= position), default=0)
        there = position == nearest or (position == end and not poisoned)
        if not there and not replays:
            with pytest.raises(CacheStateError, match=f"rewind to {position} needs"):
                session.cache.rewind(position, replay if replays else None)
            assert session.cache.poisoned == poisoned
        else:
            stays = position == end and not poisoned
            if nearest == 0 and 0 not in session.anchors and not stays:
                self.forget_rows_of_a_reset(session)
            session.cache.rewind(position, replay if replays else None)
            session.tokens = tokens[:position]
            session.stream = next(self.streams)
        self.check(session)

    @rule(pick=PICK)
    def reset(self, pick: int) -> None:
        session = self.session(pick)
        self.forget_rows_of_a_reset(session)
        session.cache.reset()
        session.tokens, session.stream = [], next(self.streams)
        self.check(session)

    def forget_rows_of_a_reset(self, session: Session) -> None:
        """A branch that has not written gives up the rows it reads; others go forward again."""
        if not session.cache.held_bytes():
            session.overwrite_from(0)

    @rule(pick=PICK, n_tokens=st.integers(1, 140), at=PICK)
    def fail(self, pick: int, n_tokens: int, at: int) -> None:
        session = self.session(pick)
        start = len(session.tokens)
        if session.cache.poisoned or start + n_tokens > session.cache.capacity_tokens:
            return
        tokens = stream_tokens(session.stream, start, start + n_tokens)
        with pytest.raises(MemoryError, match="injected"):
            self.driver.fail(tokens, session.cache, at)
        assert session.cache.poisoned
        session.overwrite_from(start)

    @invariant()
    def anchors_are_those_that_are_held(self) -> None:
        for session in self.sessions:
            held = [anchor.position for anchor in session.cache.anchors]
            assert held == sorted(session.anchors)

    def teardown(self) -> None:
        for session in self.sessions:
            self.check(session)
        # Longest first: one new cache answers for every prefix of its tokens.
        for tokens, states, n_tokens in sorted(self.answers, key=lambda it: -len(it[0])):
            found = self.driver.numbers(states)
            expected = self.fresh_states(tokens)[len(tokens) - n_tokens : len(tokens)]
            np.testing.assert_array_equal(found, expected)

    memory: dict[tuple[int, ...], tuple[np.ndarray, list[bytes]]]

    def fresh(self, tokens: Sequence[int]) -> tuple[np.ndarray, list[bytes]]:
        """States of all tokens, and what a new cache holds after them."""
        if tuple(tokens) not in self.memory:
            cache = self.driver.make(max(len(tokens), 1))
            states = self.driver.append(tokens, cache, by_steps=False) if tokens else None
            numbers = self.driver.numbers(states) if tokens else np.zeros(0)
            self.memory[tuple(tokens)] = numbers, readable(cache)
        return self.memory[tuple(tokens)]

    def fresh_states(self, tokens: tuple[int, ...]) -> np.ndarray:
        for known, (states, _) in self.memory.items():
            if known[: len(tokens)] == tokens:
                return states
        return self.fresh(tokens)[0]


def histories(driver: Driver, name: str) -> type[CacheHistories]:
    return type(name, (CacheHistories,), {"driver": driver, "memory": {}})
