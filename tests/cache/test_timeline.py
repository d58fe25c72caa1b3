"""A mark holds while the rows before it are those that were there when it was made."""

from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_dsv4.cache.timeline import Timeline

_row_ids = count()


@dataclass
class NaiveTimeline:
    """Every row has an id of its own; a mark is the ids before its position."""

    family: int  # of the timelines that were forked from one another
    rows: list[int] = field(default_factory=list)

    def mark(self, position: int) -> tuple[int, ...]:
        return (self.family, *self.rows[:position])

    def holds(self, mark: tuple[int, ...]) -> bool:
        return (self.family, *self.rows[: len(mark) - 1]) == mark

    def cut(self, position: int) -> None:
        del self.rows[position:]

    def append(self, end: int) -> None:
        self.rows += [next(_row_ids) for _ in range(end - len(self.rows))]

    def fork(self, position: int) -> "NaiveTimeline":
        return NaiveTimeline(self.family, self.rows[:position])


def appended(*ends: int) -> Timeline:
    timeline = Timeline()
    for end in ends:
        timeline.append(end)
    return timeline


def test_appending_keeps_every_mark() -> None:
    timeline = Timeline()
    marks = [timeline.mark(0)]
    for end in (1, 5, 130):
        timeline.append(end)
        marks.append(timeline.mark(end))
    assert all(timeline.holds(mark) for mark in marks)
    assert timeline.end == 130


def test_going_back_and_appending_gives_up_what_is_after() -> None:
    timeline = appended(5, 9)
    early, there, late = (timeline.mark(position) for position in (4, 5, 6))
    timeline.cut(5)
    assert timeline.end == 5
    assert [timeline.holds(mark) for mark in (early, there, late)] == [True, True, False]
    timeline.append(9)
    assert [timeline.holds(mark) for mark in (early, there, late)] == [True, True, False]
    assert timeline.holds(timeline.mark(6))


@pytest.mark.parametrize("position", [9, 10])
def test_a_cut_at_the_end_gives_up_nothing(position: int) -> None:
    timeline = appended(9)
    mark = timeline.mark(9)
    timeline.cut(position)
    timeline.append(12)
    assert timeline.holds(mark)


def test_a_position_that_is_not_there_is_not_held() -> None:
    assert not appended(4).holds(appended(4).mark(4))
    timeline = appended(4)
    assert not timeline.holds(replace(timeline.mark(4), position=5))


def test_another_timeline_holds_no_mark_not_even_at_0() -> None:
    first, second = appended(4), appended(4)
    assert [second.holds(first.mark(position)) for position in range(5)] == [False] * 5


def test_a_fork_shares_what_is_before_it_alone() -> None:
    origin = appended(8)
    fork = origin.fork(5)
    shared, own = origin.mark(5), origin.mark(6)
    fork.append(8)
    assert (fork.holds(shared), fork.holds(own)) == (True, False)
    assert not origin.holds(fork.mark(6))
    origin.cut(3)
    assert (origin.holds(shared), fork.holds(shared)) == (False, True)


# The timeline (of those there are), what is done, and where, of the positions there are.
OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from(["mark", "cut", "append", "fork", "begin"]),
        st.integers(0, 15),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(operations=OPERATIONS)
def test_any_history_agrees_with_ids_of_rows(
    operations: list[tuple[int, str, int]],
) -> None:
    pairs = [(Timeline(), NaiveTimeline(0))]
    marks = []
    for which, operation, place in operations:
        timeline, naive = pairs[which % len(pairs)]
        position = place % (len(naive.rows) + 1)
        if operation == "mark":
            marks.append((timeline.mark(position), naive.mark(position)))
        elif operation == "fork":
            pairs.append((timeline.fork(position), naive.fork(position)))
        elif operation == "begin":
            pairs.append((Timeline(), NaiveTimeline(len(pairs))))
        else:
            change = position if operation == "cut" else len(naive.rows) + place
            getattr(timeline, operation)(change)
            getattr(naive, operation)(change)
        for timeline, naive in pairs:
            assert timeline.end == len(naive.rows)
            found = [timeline.holds(mark) for mark, _ in marks]
            assert found == [naive.holds(ids) for _, ids in marks]
