"""Drawing tokens: each filter against its definition, seeds, and draws against probabilities."""

import numpy as np
import pytest

from mlx_dsv4.engine import Sampler, Sampling, decode_limit
from mlx_dsv4.errors import LogitsError

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


def drawn(sampling: Sampling, n: int = 2000, logits: np.ndarray = LOGITS) -> np.ndarray:
    sampler = Sampler(sampling)
    return np.array([sampler.draw(logits) for _ in range(n)])


def test_zero_temperature_takes_the_largest_and_the_lowest_id_on_ties() -> None:
    assert set(drawn(Sampling(temperature=0.0), 5)) == {1}
    tied = np.array([1.0, 3.0, 3.0], np.float32)
    assert Sampler(Sampling(temperature=1e-6)).draw(tied) == 1


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        (Sampling(seed=0), {0, 1, 2, 3, 4}),
        (Sampling(top_k=2, seed=0), {1, 3}),
        (Sampling(top_p=0.69, seed=0), {1, 3}),  # 0.4 + 0.3 reaches it
        (Sampling(top_p=0.71, seed=0), {1, 3, 4}),
        (Sampling(top_p=1e-9, seed=0), {1}),
        (Sampling(min_p=0.3, seed=0), {1, 3, 4}),  # 0.15 / 0.4 is kept, 0.1 / 0.4 is not
        (Sampling(top_k=3, min_p=0.5, seed=0), {1, 3}),
        (Sampling(top_k=99, seed=0), {0, 1, 2, 3, 4}),
    ],
)
def test_filters_keep_what_they_promise(sampling: Sampling, possible: set[int]) -> None:
    assert set(drawn(sampling)) == possible


def test_of_equal_logits_the_lower_ids_stay() -> None:
    tied = np.array([0.0, 2.0, 1.0, 1.0, 1.0], np.float32)
    assert set(drawn(Sampling(top_k=3, seed=0), logits=tied)) == {1, 2, 3}
    assert set(drawn(Sampling(top_p=0.75, seed=0), logits=tied)) == {1, 2, 3}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_tempered_probabilities(temperature: float) -> None:
    expected = np.exp(LOGITS / temperature)
    expected /= expected.sum()
    counts = np.bincount(drawn(Sampling(temperature, seed=3), 20_000), minlength=5) / 20_000
    # Four standard deviations of a binomial share.
    np.testing.assert_allclose(counts, expected, atol=4 * np.sqrt(0.25 / 20_000))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_is_refused(temperature: float) -> None:
    logits = np.array([0.0, np.nan, 1.0], np.float32)
    with pytest.raises(LogitsError, match="got 1 NaN of 3: the weights of the file may be damaged"):
        Sampler(Sampling(temperature)).draw(logits)


def test_the_same_seed_gives_the_same_draws() -> None:
    first, second, other = (drawn(Sampling(seed=seed), 50) for seed in (7, 7, 8))
    assert (first == second).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature must be >= 0; got -0.1"),
        ({"top_k": -1}, "top_k must be >= 0; got -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1; got 0.0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1; got 1.5"),
        ({"min_p": 1.5}, r"min_p must be in 0\.\.1; got 1.5"),
        ({"seed": -1}, "seed must be >= 0; got -1"),
        ({"temperature": float("nan")}, "temperature must be >= 0; got nan"),
    ],
)
def test_numbers_out_of_range_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**fields)


@pytest.mark.parametrize(
    ("max_tokens", "context", "prompt_tokens", "limit"),
    [(5, 100, 10, 5), (0, 100, 10, 1), (500, 100, 10, 91), (500, 100, 100, 1)],
)
def test_the_last_token_needs_no_row(
    max_tokens: int, context: int, prompt_tokens: int, limit: int
) -> None:
    assert decode_limit(max_tokens, context=context, prompt_tokens=prompt_tokens) == limit
