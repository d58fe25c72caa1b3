"""How prompts are cut: the rule and its vectors, and that no cut leaves a rest without a call."""

import pytest

from mlx_dsv4.engine.prefill import (
    balanced_multiplier,
    chunk_multiplier,
    chunk_tokens,
    slice_tokens,
)

GB = 10**9


@pytest.mark.parametrize(
    ("weights", "capacity", "setting", "multiplier"),
    [
        (87 * GB, 131_072, None, 32),
        (100 * GB - 1, 4096, None, 32),
        (100 * GB, 4096, None, 16),
        (150 * GB, 131_072, None, 16),
        (150 * GB, 131_073, None, 8),
        (87 * GB, 1_048_576, None, 8),
        (87 * GB, 1_048_576, 5, 5),
    ],
)
def test_the_multiplier(weights: int, capacity: int, setting: int | None, multiplier: int) -> None:
    assert chunk_multiplier(weights, capacity, setting=setting) == multiplier


@pytest.mark.parametrize(
    ("n_tokens", "multiplier", "balanced"),
    [
        (4987, 16, 13),
        (4096, 16, 16),  # exactly two chunks
        (4097, 16, 11),
        (6143, 16, 16),
        (6144, 16, 16),  # exactly three
        (119_821, 16, 16),
        (100, 16, 16),
        (300, 1, 1),
    ],
)
def test_two_chunks_and_a_bit_become_three_alike(
    n_tokens: int, multiplier: int, balanced: int
) -> None:
    assert balanced_multiplier(n_tokens, multiplier) == balanced


@pytest.mark.parametrize(
    ("position", "remaining", "multiplier", "n_tokens"),
    [
        (0, 1, 16, 1),
        (0, 32, 16, 32),
        (5, 32, 16, 0),
        (5, 33, 16, 33),
        (0, 5000, 16, 2048),
        (2048, 2952, 16, 2048),
        (4096, 904, 16, 904),
        (0, 5000, 32, 4096),
    ],
)
def test_a_chunk(position: int, remaining: int, multiplier: int, n_tokens: int) -> None:
    assert chunk_tokens(position, remaining, multiplier) == n_tokens


@pytest.mark.parametrize("rest", range(1, 40))
@pytest.mark.parametrize("start", [0, 128])
def test_a_chunk_is_shrunk_to_leave_enough_for_another(start: int, rest: int) -> None:
    remaining = 2 * 128 + rest
    first = slice_tokens(start, remaining, 2)
    if rest < 33:
        assert remaining - first == 33
    else:
        assert first == 256


@pytest.mark.parametrize("position", [0, 1, 7, 128, 5000])
@pytest.mark.parametrize("multiplier", [1, 2, 16])
def test_every_length_is_read_to_its_end(position: int, multiplier: int) -> None:
    for total in (*range(1, 420), 2047, 2048, 2049, 2080, 2081, 5000):
        at, calls = 0, 0
        while at < total:
            size = slice_tokens(position + at, total - at, multiplier)
            assert 1 <= size <= min(total - at, 128 * multiplier)
            at += size
            calls += 1
        # At most one more than whole chunks need.
        assert calls <= -(-total // (128 * multiplier)) + 1
