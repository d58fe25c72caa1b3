"""Drawing tokens: each step against its definition, seeds, and draws against probabilities."""

from fractions import Fraction

import numpy as np
import pytest

from mlx_dsv4.engine import Params, Sampler, TokenLogprob, decode_limit
from mlx_dsv4.errors import LogitsError, ParamsError

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))


def drawn(params: Params, n: int = 2000, logits: np.ndarray = LOGITS) -> np.ndarray:
    sampler = Sampler(params, logits.size)
    return np.array([sampler.draw(logits) for _ in range(n)])


def test_zero_temperature_takes_the_largest_and_the_lowest_id_on_ties() -> None:
    assert set(drawn(Params(temperature=0.0), 5)) == {1}
    tied = np.array([1.0, 3.0, 3.0], np.float32)
    assert Sampler(Params(temperature=1e-6), 3).draw(tied) == 1


@pytest.mark.parametrize(
    ("params", "possible"),
    [
        (Params(seed=0), {0, 1, 2, 3, 4}),
        (Params(top_k=2, seed=0), {1, 3}),
        (Params(top_p=0.69, seed=0), {1, 3}),  # 0.4 + 0.3 reaches it
        (Params(top_p=0.71, seed=0), {1, 3, 4}),
        (Params(top_p=1e-9, seed=0), {1}),
        (Params(min_p=0.3, seed=0), {1, 3, 4}),  # 0.15 / 0.4 is kept, 0.1 / 0.4 is not
        (Params(top_k=3, min_p=0.5, seed=0), {1, 3}),
        (Params(top_k=99, seed=0), {0, 1, 2, 3, 4}),
    ],
)
def test_filters_keep_what_they_promise(params: Params, possible: set[int]) -> None:
    assert set(drawn(params)) == possible


def test_of_equal_logits_the_lower_ids_stay() -> None:
    tied = np.array([0.0, 2.0, 1.0, 1.0, 1.0], np.float32)
    assert set(drawn(Params(top_k=3, seed=0), logits=tied)) == {1, 2, 3}
    assert set(drawn(Params(top_p=0.75, seed=0), logits=tied)) == {1, 2, 3}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_tempered_probabilities(temperature: float) -> None:
    expected = np.exp(LOGITS / temperature)
    expected /= expected.sum()
    counts = (
        np.bincount(drawn(Params(temperature=temperature, seed=3), 20_000), minlength=5) / 20_000
    )
    # Four standard deviations of a binomial share.
    np.testing.assert_allclose(counts, expected, atol=4 * np.sqrt(0.25 / 20_000))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_is_refused(temperature: float) -> None:
    logits = np.array([0.0, np.nan, 1.0], np.float32)
    with pytest.raises(LogitsError, match="got 1 NaN of 3: the weights of the file may be damaged"):
        Sampler(Params(temperature=temperature), 3).draw(logits)


def test_the_same_seed_gives_the_same_draws() -> None:
    first, second, other = (drawn(Params(seed=seed), 50) for seed in (7, 7, 8))
    assert (first == second).all()
    assert (first != other).any()


def first(params: Params, logits: np.ndarray = LOGITS, history: tuple[int, ...] = ()) -> int:
    """The greedy choice after some tokens were generated, whatever their logits were."""
    sampler = Sampler(params, logits.size)
    for token in history:
        only = np.full(logits.size, -1e9, np.float32)
        only[token] = 1e9
        assert sampler.draw(only) == token
    return sampler.draw(logits)


GREEDY = Params(temperature=0.0)


def test_bias_comes_before_the_choice() -> None:
    assert first(Params(temperature=0, logit_bias={2: 5.0})) == 2
    assert first(Params(temperature=0, logit_bias={1: -5.0})) == 3
    assert set(drawn(Params(seed=0, logit_bias={1: -1e9, 3: -1e9}), 500)) == {0, 2, 4}


def test_a_mask_allows_and_is_told_the_tokens_so_far() -> None:
    seen: list[tuple[int, ...]] = []

    def only_even(tokens: tuple[int, ...]) -> np.ndarray | None:
        seen.append(tokens)
        return None if len(tokens) == 2 else np.arange(5) % 2 == 0

    sampler = Sampler(Params(temperature=0, allowed_tokens=only_even), 5)
    assert [sampler.draw(LOGITS) for _ in range(4)] == [4, 4, 1, 4]
    assert seen == [(), (4,), (4, 4), (4, 4, 1)]


def test_the_mask_is_applied_after_the_bias() -> None:
    mask = np.array([True, False, True, True, True])
    params = Params(temperature=0, logit_bias={1: 100.0}, allowed_tokens=lambda _: mask)
    assert first(params) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
def test_what_the_mask_forbids_is_never_drawn(temperature: float) -> None:
    mask = np.array([True, False, False, False, True])
    params = Params(temperature=temperature, seed=1, allowed_tokens=lambda _: mask)
    assert set(drawn(params, 1000)) <= {0, 4}


@pytest.mark.parametrize(
    ("fields", "history", "token"),
    [
        # LOGITS are negative: a repetition penalty multiplies them. log .4 * 2 < log .3.
        ({"repetition_penalty": 2.0}, (1,), 3),
        ({"repetition_penalty": 2.2}, (1, 3), 4),
        ({"repetition_penalty": 1.2}, (1,), 1),
        ({"presence_penalty": 0.2}, (1,), 1),  # log(.4 / .3) = 0.29
        ({"presence_penalty": 0.3}, (1,), 3),
        ({"presence_penalty": 0.2}, (1, 1), 1),
        ({"frequency_penalty": 0.2}, (1,), 1),
        ({"frequency_penalty": 0.2}, (1, 1), 3),
        ({"presence_penalty": 0.15, "frequency_penalty": 0.15}, (1,), 3),
        ({"presence_penalty": -2.0}, (2, 2), 1),  # log .05 + 2 < log .4
        ({"presence_penalty": -3.0}, (2, 2), 2),
    ],
)
def test_penalties_follow_their_definitions(
    fields: dict, history: tuple[int, ...], token: int
) -> None:
    assert first(Params(temperature=0, **fields), history=history) == token


def test_a_positive_logit_is_divided_by_the_repetition_penalty() -> None:
    logits = np.array([3.0, 4.0, -1.0], np.float32)
    assert first(Params(temperature=0, repetition_penalty=1.3), logits, (1,)) == 1  # 3.08
    assert first(Params(temperature=0, repetition_penalty=1.4), logits, (1,)) == 0  # 2.86


def test_logits_are_left_as_they_are() -> None:
    logits = LOGITS.copy()
    mask = np.ones(5, bool)
    params = Params(logit_bias={1: 5.0}, allowed_tokens=lambda _: mask, presence_penalty=1.0)
    drawn(params, 5, logits)
    np.testing.assert_array_equal(logits, LOGITS)


def test_logprobs_are_those_of_the_model_whatever_the_steps() -> None:
    params = Params(temperature=0, logprobs=2, logit_bias={2: 50.0}, presence_penalty=1.0)
    sampler = Sampler(params, 5)
    shifted = LOGITS + np.float32(7)  # not normalised
    sampler.draw(shifted)
    (told,) = sampler.logprobs
    assert told.token == 2
    assert told.logprob == pytest.approx(np.log(0.05), abs=1e-5)
    assert [token for token, _ in told.top] == [1, 3]
    np.testing.assert_allclose([p for _, p in told.top], np.log([0.4, 0.3]), atol=1e-5)


def test_logprobs_without_alternatives_and_without_anything() -> None:
    sampler = Sampler(Params(temperature=0, logprobs=0), 5)
    sampler.draw(LOGITS)
    assert sampler.logprobs == [TokenLogprob(1, pytest.approx(np.log(0.4), abs=1e-5), ())]
    silent = Sampler(GREEDY, 5)
    silent.draw(LOGITS)
    assert silent.logprobs == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature must be a number >= 0 .*; got -0.1"),
        ({"temperature": float("nan")}, "temperature must be a number >= 0 .*; got nan"),
        ({"temperature": float("inf")}, "temperature must be a number >= 0 and <= 1e.30; got inf"),
        ({"temperature": "1"}, "temperature must be a number >= 0 .*; got '1'"),
        ({"temperature": 10**400}, "temperature must be a number >= 0 and <= 1e.30; got 10"),
        ({"top_k": -1}, "top_k must be an integer >= 0; got -1"),
        ({"top_k": 2.5}, "top_k must be an integer >= 0; got 2.5"),
        ({"top_p": 0.0}, "top_p must be a number above 0 and <= 1; got 0.0"),
        ({"top_p": 1.5}, "top_p must be a number above 0 and <= 1; got 1.5"),
        ({"min_p": 1.5}, "min_p must be a number >= 0 and <= 1; got 1.5"),
        ({"seed": -1}, "seed must be an integer >= 0; got -1"),
        ({"max_tokens": 0}, "max_tokens must be an integer >= 1; got 0"),
        ({"max_tokens": True}, "max_tokens must be an integer >= 1; got True"),
        ({"logprobs": 21}, r"logprobs must be an integer in 0\.\.20; got 21"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0 .*; got 0"),
        ({"presence_penalty": None}, "presence_penalty must be a number .*; got None"),
        ({"logit_bias": {-1: 1.0}}, "a token of logit_bias must be an integer >= 0; got -1"),
        ({"logit_bias": {3: "x"}}, r"logit_bias\[3\] must be a number .*; got 'x'"),
        ({"logit_bias": [3]}, r"logit_bias must be a mapping .*; got \[3\]"),
        ({"stop": ["a", ""]}, r"stop must be strings .*; got \['a', ''\]"),
        ({"stop": ""}, r"stop must be strings of at least one character; got \(''"),
        ({"stop": ["a\ud800"]}, "stop must be valid Unicode, without lone surrogates; got"),
        ({"stop_ids": [-3]}, "stop_ids must be an integer >= 0; got -3"),
        ({"allowed_tokens": 3}, "allowed_tokens must be a function .*; got 3"),
    ],
)
def test_values_out_of_range_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        Params(**fields)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros(5, bool), "must leave a token; none is left"),
        (np.ones(4, bool), r"must return \[5\] bool; got \[4\] bool"),
        (np.ones(5, int), r"must return \[5\] bool; got \[5\] int64"),
    ],
)
def test_a_mask_that_makes_no_sense_is_refused(mask: np.ndarray, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        Sampler(Params(allowed_tokens=lambda _: mask), 5).draw(LOGITS)


def test_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"logit_bias must be of ids in 0\.\.4; got 5"):
        Sampler(Params(logit_bias={5: 1.0}), 5)


def test_numbers_of_numpy_are_numbers() -> None:
    params = Params(temperature=np.float32(0), top_k=np.int64(3), stop_ids=[np.int32(3)])
    assert first(params) == 1


def test_numbers_of_any_type_are_drawn_with() -> None:
    """Small integers of numpy overflow beside larger ones, and fractions meet no array."""
    logits = np.arange(1000, dtype=np.float32)
    odd = Params(
        top_k=np.uint8(200),
        logprobs=np.uint8(5),
        max_tokens=np.uint8(200),
        seed=np.uint8(7),
        temperature=Fraction(5, 2),
        logit_bias={np.uint8(3): Fraction(1, 2)},
    )
    plain = Params(
        top_k=200, logprobs=5, max_tokens=200, seed=7, temperature=2.5, logit_bias={3: 0.5}
    )
    assert odd == plain
    ours, theirs = Sampler(odd, 1000), Sampler(plain, 1000)
    assert [ours.draw(logits) for _ in range(9)] == [theirs.draw(logits) for _ in range(9)]
    assert odd.max_tokens + 100 == 300


def test_params_do_not_follow_what_they_were_made_of() -> None:
    bias, stop, stop_ids = {3: 1.0}, ["a"], [3]
    params = Params(logit_bias=bias, stop=stop, stop_ids=stop_ids)
    bias[5], stop[0], stop_ids[0] = 2.0, "", -1
    assert params == Params(logit_bias={3: 1.0}, stop=("a",), stop_ids=(3,))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1e-30, 1e-300, 5e-324])
def test_no_penalty_makes_what_is_not_a_number(penalty: float, temperature: float) -> None:
    """A token that bias and penalty make the likeliest is drawn; one that is masked never is."""
    params = Params(
        temperature=temperature,
        repetition_penalty=penalty,
        logit_bias={2: 1e30},
        allowed_tokens=lambda tokens: np.arange(5) != (0 if len(tokens) < 2 else tokens[0]),
    )
    sampler = Sampler(params, 5)
    assert [sampler.draw(LOGITS) for _ in range(2)] == [2, 2]
    assert 2 not in [sampler.draw(LOGITS) for _ in range(20)]


@pytest.mark.parametrize(
    ("max_tokens", "context", "prompt_tokens", "limit"),
    [(5, 100, 10, 5), (0, 100, 10, 1), (500, 100, 10, 91), (500, 100, 100, 1), (None, 100, 10, 91)],
)
def test_the_last_token_needs_no_row(
    max_tokens: int | None, context: int, prompt_tokens: int, limit: int
) -> None:
    assert decode_limit(max_tokens, context=context, prompt_tokens=prompt_tokens) == limit
