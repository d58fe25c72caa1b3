"""Rotation tables against complex numbers and the frequencies of the published model."""

import numpy as np
import pytest

from mlx_dsv4 import reference
from mlx_dsv4.cache import Step, plan_span
from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.model.rope import Rope


def step(start: int, n_tokens: int) -> Step:
    spans = {
        ratio: plan_span(start, n_tokens, capacity_tokens=2**20, window=128, ratio=ratio)
        for ratio in (0, 4, 128)
    }
    return Step(start, n_tokens, spans)


def turns(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    angle = (positions[:, None].astype(np.float32) * frequencies).astype(np.float64)
    return np.exp(1j * angle)


@pytest.mark.parametrize("pos", [0, 1, 127, 70_000, 1_048_575])
def test_tables_are_complex_turns(pos: int) -> None:
    tables = Rope(V4_FLASH).of_tokens([step(pos, 1)])
    plain = reference.inverse_frequencies(64, 10_000.0)
    yarn = reference.inverse_frequencies(64, 160_000.0, factor=16.0, original_context=65_536)
    for ratio, frequencies in ((0, plain), (4, yarn), (128, yarn)):
        table = np.array(tables[ratio]).astype(np.float64)
        expected = turns(np.array([pos]), frequencies)
        np.testing.assert_allclose(table[..., 0] + 1j * table[..., 1], expected, atol=2**-24)


def test_tokens_of_several_steps_follow_each_other() -> None:
    rope = Rope(V4_FLASH)
    steps = [step(7, 3), step(125, 10), step(0, 1)]
    joined = rope.of_tokens(steps)
    for ratio, table in joined.items():
        alone = [np.array(rope.of_tokens([one])[ratio]) for one in steps]
        np.testing.assert_array_equal(np.array(table), np.concatenate(alone))


def test_rows_rotate_at_the_first_token_of_their_span() -> None:
    tables = Rope(V4_FLASH).of_closed_rows(step(125, 10))
    yarn = reference.inverse_frequencies(64, 160_000.0, factor=16.0, original_context=65_536)
    for ratio, rows in ((4, [124, 128]), (128, [0])):
        table = np.array(tables[ratio]).astype(np.float64)
        expected = turns(np.array(rows), yarn)
        np.testing.assert_allclose(
            table[..., 0] + 1j * table[..., 1], expected[: len(rows)], atol=2**-24
        )
    assert tables[0].shape == (0, 32, 2)


def test_yarn_leaves_fast_pairs_and_divides_slow_ones() -> None:
    one = np.array(Rope(V4_FLASH).of_tokens([step(1, 1)])[4])[0]
    angle = np.arctan2(one[:, 1].astype(np.float64), one[:, 0])
    unscaled = 160_000.0 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(angle[:16], unscaled[:16], rtol=1e-6)
    np.testing.assert_allclose(angle[25:], unscaled[25:] / 16, rtol=1e-6)
    between = angle[16:25] / unscaled[16:25]
    assert (np.diff(between) < 0).all()
