"""Stop strings in pieces against a search of the whole text, one character after the other."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlx_dsv4.text import StopStrings

# Few letters, so that strings overlap; of one, two, three and four bytes.
LETTERS = "abcé中😀"
WORDS = st.text(LETTERS, min_size=1, max_size=5)
STRINGS = st.lists(WORDS, max_size=4)
TEXTS = st.lists(st.one_of(WORDS, st.text(LETTERS)), max_size=6).map("".join)


def first_complete(text: str, strings: list[str]) -> tuple[str, str | None]:
    """The text before the string that is complete first, the longest of those; the string."""
    for end in range(len(text) + 1):
        complete = [s for s in strings if text[:end].endswith(s)]
        if complete:
            found = max(complete, key=len)
            return text[: end - len(found)], found
    return text, None


def certain(text: str, strings: list[str]) -> str:
    """Text without the longest ending that a stop string begins with."""
    return next(
        text[:at]
        for at in range(len(text) + 1)
        if at == len(text) or any(s.startswith(text[at:]) for s in strings)
    )


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    text = draw(TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    ends = [0, *cuts, len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


@given(pieces=cut_texts(), strings=STRINGS)
@example(pieces=["ab", "cd"], strings=["abcd", "bc"])
@example(pieces=["a", "a", "b"], strings=["aab", "ab", "b"])
@example(pieces=["abab", "abc"], strings=["ababc"])
def test_any_cut_gives_what_the_whole_text_gives(pieces: list[str], strings: list[str]) -> None:
    stops = StopStrings(strings)
    shown = "".join([*map(stops.push, pieces), stops.flush()])
    assert (shown, stops.found) == first_complete("".join(pieces), strings)


@given(pieces=cut_texts(), strings=STRINGS)
@example(pieces=["aab", "aa"], strings=["aabaac"])
def test_all_is_shown_but_what_a_stop_string_may_begin(
    pieces: list[str], strings: list[str]
) -> None:
    stops = StopStrings(strings)
    seen = shown = ""
    for piece in pieces:
        seen += piece
        shown += stops.push(piece)
        before, found = first_complete(seen, strings)
        assert shown == (before if found else certain(seen, strings))


@given(before=cut_texts(), after=cut_texts(), strings=st.lists(WORDS, min_size=1, max_size=3))
def test_nothing_follows_a_stop_string(
    before: list[str], after: list[str], strings: list[str]
) -> None:
    stops = StopStrings(strings)
    for piece in [*before, strings[0]]:
        stops.push(piece)
    found = stops.found
    assert found is not None
    assert [*map(stops.push, after), stops.flush()] == [""] * (len(after) + 1)
    assert stops.found == found


@pytest.mark.parametrize(
    ("strings", "text", "shown", "found"),
    [
        (["abcd", "bc"], "xabcd", "xa", "bc"),  # complete first, though it begins later
        (["abc", "bc", "c"], "xabc", "x", "abc"),  # complete at once: the longest
        (["ab", "abc"], "xabc", "x", "ab"),  # one begins the other
        (["\n\nUser:"], "a\n\nUse", "a\n\nUse", None),
        (["。"], "好。再", "好", "。"),
        (["👩\u200d👧"], "a👩\u200d👧b", "a", "👩\u200d👧"),
        (["a"], "", "", None),
        ([], "all of it", "all of it", None),
    ],
)
def test_texts_worked_by_hand(strings: list[str], text: str, shown: str, found: str | None) -> None:
    for pieces in ([text], list(text)):
        stops = StopStrings(strings)
        assert "".join([*map(stops.push, pieces), stops.flush()]) == shown
        assert stops.found == found
