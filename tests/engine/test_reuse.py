"""Which position a prompt is read on from: the rules and their vectors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_dsv4.engine.reuse import Held, anchor_positions, choose, common_prefix, worth_keeping


def first(n: int) -> list[int]:
    return list(range(n))


def diverging(n_same: int, n_other: int) -> list[int]:
    return first(n_same) + [-1] * n_other


@pytest.mark.parametrize(
    ("prompt", "live", "anchors", "kind", "tokens", "diverged_at"),
    [
        ([1, 2, 3, 4, 5], [1, 2, 3, 4], [2], "live", 4, None),
        ([1, 2, 7, 8], [1, 2, 9, 7], [2], "anchor", 2, 2),
        ([4, 5, 6], [1, 2, 3], [2], "reset", 0, 0),
        # Few cached and many to read: to begin empty is faster.
        (first(306), diverging(5, 20), [1], "reset", 0, 5),
        (first(516), first(16), [], "reset", 0, None),
        (first(48), first(37), [], "live", 37, None),
        (first(180), diverging(150, 9), [140], "anchor", 140, 150),
        # The borders of that rule.
        (first(160), first(127), [], "reset", 0, None),  # 33 remain
        (first(159), first(127), [], "live", 127, None),  # 32 remain
        (first(999), first(128), [], "live", 128, None),
        (first(999), first(127), [], "reset", 0, None),
        # The deepest anchor before the place where they differ.
        (first(900), diverging(600, 300), [100, 200, 500, 601, 880], "anchor", 500, 600),
        (first(900), diverging(600, 300), [600], "anchor", 600, 600),
        (first(900), diverging(600, 300), [601], "reset", 0, 600),
        # A session that is longer than the prompt.
        (first(200), first(300), [150, 192, 200, 250], "anchor", 192, None),
        (first(200), [], [], "reset", 0, None),
    ],
)
def test_vectors(
    prompt: list[int],
    live: list[int],
    anchors: list[int],
    kind: str,
    tokens: int,
    diverged_at: int | None,
) -> None:
    reuse = choose(prompt, Held(live, anchors))
    assert (reuse.kind, reuse.tokens, reuse.diverged_at) == (kind, tokens, diverged_at)
    assert reuse.reason


def test_a_whole_prompt_is_reused_only_with_its_logits() -> None:
    assert choose(first(150), Held(first(150), [142], has_logits=True)).tokens == 150
    without = choose(first(150), Held(first(150), [142], has_logits=False))
    assert (without.kind, without.tokens) == ("anchor", 142)


@pytest.mark.parametrize(
    ("prompt", "live", "anchors", "reason"),
    [
        # A prefix of what is held, or all of it: nothing in it differs.
        (
            first(200),
            first(300),
            [192],
            "the prompt ends inside what is held, and the logits after it are gone; "
            "reading goes on from the anchor at 192",
        ),
        (
            first(150),
            first(150),
            [142],
            "the prompt ends inside what is held, and the logits after it are gone; "
            "reading goes on from the anchor at 142",
        ),
        (
            first(200),
            first(300),
            [20, 250],
            "the prompt ends inside what is held, and the logits after it are gone; "
            "the anchor at 20 has too few tokens to keep",
        ),
        (
            first(180),
            diverging(150, 9),
            [140],
            "the prompt diverges at token 150; reading goes on from the anchor at 140",
        ),
        (
            first(900),
            diverging(600, 300),
            [601],
            "the prompt diverges at token 600; no anchor is before it",
        ),
        # Every prompt begins with BOS.
        (first(200), diverging(1, 300), [1], "nothing of the prompt is held"),
        (first(200), diverging(0, 300), [100], "nothing of the prompt is held"),
    ],
)
def test_the_reason_in_words(
    prompt: list[int], live: list[int], anchors: list[int], reason: str
) -> None:
    assert choose(prompt, Held(live, anchors)).reason == reason


def test_an_anchor_at_the_end_of_the_prompt_is_no_use() -> None:
    """It has no logits to go on with."""
    assert choose(first(150), Held(first(200), [150])).kind == "reset"


def test_a_poisoned_cache_never_matches() -> None:
    held = Held(first(300), [140, 290], has_logits=True, usable=False)
    for prompt in (first(300), first(400), first(150)):
        assert choose(prompt, held).kind == "reset"
        assert "poisoned" in choose(prompt, held).reason


@given(
    st.lists(st.integers(0, 1), max_size=12),
    st.lists(st.integers(0, 1), max_size=12),
)
def test_the_common_prefix(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=400),
    st.lists(st.integers(0, 1), max_size=400),
    st.sets(st.integers(1, 400)),
    st.booleans(),
)
def test_what_is_reused_is_a_prefix_that_the_session_can_be_at(
    prompt: list[int], live: list[int], anchors: set[int], has_logits: bool
) -> None:
    anchors = {at for at in anchors if at <= len(live)}
    reuse = choose(prompt, Held(live, anchors, has_logits))
    n = reuse.tokens
    assert prompt[:n] == live[:n]
    assert n == 0 or n in anchors | {len(live)}
    assert n < len(prompt) or has_logits
    assert n == 0 or worth_keeping(n, len(prompt))
    best = [at for at in anchors if at < len(prompt) and prompt[:at] == live[:at]]
    assert all(at <= n or not worth_keeping(at, len(prompt)) for at in best)


@pytest.mark.parametrize(
    ("n_prompt", "hints", "positions"),
    [
        (100, [], [92]),
        (100, [40], [40, 92]),
        (100, [92, 0, -3, 93, 100, 400], [92]),
        (9, [1], [1]),
        (8, [1], []),
        (1, [], []),
    ],
)
def test_anchors_are_kept_before_the_end_and_where_hinted(
    n_prompt: int, hints: list[int], positions: list[int]
) -> None:
    assert anchor_positions(n_prompt, hints) == positions
