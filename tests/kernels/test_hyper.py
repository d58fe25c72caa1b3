"""Hyper-connection kernels against their reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, same_bits, strided, to_numpy
from mlx_dsv4 import ops, reference

NORM_EPS, HYPER_EPS, ITERATIONS = 1e-6, 1e-6, 20
SETTINGS = {"norm_eps": NORM_EPS, "hyper_eps": HYPER_EPS, "iterations": ITERATIONS}
HEAD_SETTINGS = {"norm_eps": NORM_EPS, "hyper_eps": HYPER_EPS}
LAYERS = 43


@dataclass(frozen=True)
class Case:
    n_tokens: int
    n_streams: int
    dim: int

    def __str__(self) -> str:
        return f"T{self.n_tokens}-S{self.n_streams}-D{self.dim}"


CASES = [
    Case(1, 1, 16),  # one stream, one vector
    Case(3, 3, 48),  # fn rows and tokens that fill no tile
    pytest.param(Case(1, 4, 4096), marks=pytest.mark.realistic),  # V4-Flash, decode
    pytest.param(Case(9, 4, 4096), marks=pytest.mark.realistic),  # V4-Flash, prefill
    Case(33, 4, 256),  # many tokens
    Case(9, 5, 112),  # a segment, a tile and blocks of fn rows that are not full
    Case(2, 1, 1040),  # more dims than a threadgroup has lanes for
    Case(2, 8, 64),  # the most streams
]


def make_inputs(case: Case, *, outputs: int | None = None, seed: int = 0) -> list[np.ndarray]:
    """streams, fn, base, scale, norm of hyper_pre; `outputs` rows of fn for the head."""
    rng = np.random.default_rng(seed)
    n, (t, s, d) = case.n_streams * case.dim, (case.n_tokens, case.n_streams, case.dim)
    rows, scales = (outputs, 1) if outputs else ((2 + s) * s, 3)
    arrays = [
        3 * rng.standard_normal((t, s, d)),
        rng.standard_normal((rows, n)) / np.sqrt(n),
        rng.standard_normal(rows),
        rng.uniform(0.5, 2, scales),
        rng.standard_normal(d),
    ]
    return [a.astype(np.float32) for a in arrays]


def on_mlx(arrays: list[np.ndarray]) -> list[mx.array]:
    return [mx.array(a) for a in arrays]


def logit_bound(inputs: list[np.ndarray]) -> float:
    """Error of a scaled product: rounding in a sum of n terms walks at random.

    sqrt(n) * EPS * |fn * flat| is five times that walk's spread in 16 lanes or more; a product, the
    scale and the base add 4 roundings of the value itself.
    """
    streams, fn, base, scale, _ = (a.astype(np.float64) for a in inputs)
    flat = streams.reshape(streams.shape[0], -1)
    flat = flat / np.sqrt(np.mean(flat**2, 1, keepdims=True))
    walk = np.sqrt(fn.shape[1] * (flat**2 @ fn.T**2)) * EPS
    return float((walk + 4 * EPS * np.abs(flat @ fn.T)).max() * scale.max() + EPS * abs(base).max())


def x_bound(inputs: list[np.ndarray]) -> float:
    """A weight moves by a quarter of its logit's error plus 4 ulp; the sum over streams adds S.

    RMSNorm divides by the collapsed row's size and shares the row's own error (twice at most),
    then rounds 4 times.
    """
    streams, fn, base, scale, norm = (a.astype(np.float64) for a in inputs)
    n_tokens, n_streams, _ = streams.shape
    flat = streams.reshape(n_tokens, -1)
    flat = flat / np.sqrt(np.mean(flat**2, 1, keepdims=True))
    weights = 1 / (1 + np.exp(-(flat @ fn[:n_streams].T * scale[0] + base[:n_streams])))
    collapsed = np.einsum("ts,tsd->td", weights, streams)
    rms = np.sqrt(np.mean(collapsed**2, 1, keepdims=True))
    weight_error = logit_bound(inputs) / 4 + (4 + n_streams) * EPS
    moved = weight_error * np.abs(streams).sum(1)
    size = 2 * moved.max(1, keepdims=True) / rms + 4 * EPS
    return float(((moved / rms + size * np.abs(collapsed) / rms) * np.abs(norm)).max())


def comb_bound(inputs: list[np.ndarray], iterations: int = ITERATIONS) -> float:
    """Relative: a division passes errors on and adds S + 2 roundings; 2 divisions an iteration."""
    n_streams = inputs[0].shape[1]
    return 2 * iterations * (2 * logit_bound(inputs) + (n_streams + 2) * EPS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pre_matches_reference(case: Case, executor: str) -> None:
    inputs = make_inputs(case)
    x, post, comb = ops.hyper_pre(*on_mlx(inputs), **SETTINGS)
    mx.eval(x, post, comb)
    expected_x, expected_post, expected_comb = reference.hyper_pre(*inputs, **SETTINGS)
    post_bound = logit_bound(inputs) / 2 + 8 * EPS
    np.testing.assert_allclose(to_numpy(x), expected_x, atol=x_bound(inputs), rtol=0)
    np.testing.assert_allclose(to_numpy(post), expected_post, atol=post_bound, rtol=0)
    np.testing.assert_allclose(to_numpy(comb), expected_comb, atol=0, rtol=comb_bound(inputs))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_head_matches_reference(case: Case, executor: str) -> None:
    inputs = make_inputs(case, outputs=case.n_streams)
    x = ops.hyper_head(*on_mlx(inputs), **HEAD_SETTINGS)
    mx.eval(x)
    expected = reference.hyper_head(*inputs, **HEAD_SETTINGS)
    np.testing.assert_allclose(to_numpy(x), expected, atol=x_bound(inputs), rtol=0)


def make_post_inputs(case: Case, seed: int = 1) -> list[np.ndarray]:
    """streams, y, post, comb of hyper_post; comb is not symmetric."""
    rng = np.random.default_rng(seed)
    t, s, d = case.n_tokens, case.n_streams, case.dim
    arrays = [
        3 * rng.standard_normal((t, s, d)),
        rng.standard_normal((t, d)),
        rng.uniform(0, 2, (t, s)),
        rng.uniform(0, 1, (t, s, s)),
    ]
    return [a.astype(np.float32) for a in arrays]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_post_matches_reference(case: Case, executor: str) -> None:
    inputs = make_post_inputs(case)
    out = ops.hyper_post(*on_mlx(inputs))
    mx.eval(out)
    # S + 1 roundings, each of a partial sum no larger than the sum of magnitudes.
    bound = (case.n_streams + 1) * EPS * reference.hyper_post(*(np.abs(a) for a in inputs))
    assert (np.abs(to_numpy(out) - reference.hyper_post(*inputs)) <= bound).all()


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_few_iterations_are_counted_right(iterations: int, executor: str) -> None:
    inputs = make_inputs(Case(5, 4, 64))
    settings = SETTINGS | {"iterations": iterations}
    _, _, comb = ops.hyper_pre(*on_mlx(inputs), **settings)
    mx.eval(comb)
    expected = reference.hyper_pre(*inputs, **settings)[2]
    bound = comb_bound(inputs, iterations)
    np.testing.assert_allclose(to_numpy(comb), expected, atol=0, rtol=bound)
    one_more = reference.hyper_pre(*inputs, **(settings | {"iterations": iterations + 1}))[2]
    assert np.abs(one_more / expected - 1).max() > 10 * bound


def test_a_large_eps_is_added_everywhere(executor: str) -> None:
    case, large = Case(5, 4, 64), {"hyper_eps": 0.1}
    inputs, head_inputs = make_inputs(case), make_inputs(case, outputs=case.n_streams)
    x, _, comb = ops.hyper_pre(*on_mlx(inputs), **(SETTINGS | large))
    head = ops.hyper_head(*on_mlx(head_inputs), **(HEAD_SETTINGS | large))
    mx.eval(x, comb, head)
    expected_x, _, expected_comb = reference.hyper_pre(*inputs, **(SETTINGS | large))
    expected_head = reference.hyper_head(*head_inputs, **(HEAD_SETTINGS | large))
    np.testing.assert_allclose(to_numpy(x), expected_x, atol=x_bound(inputs), rtol=0)
    np.testing.assert_allclose(to_numpy(head), expected_head, atol=x_bound(head_inputs), rtol=0)
    np.testing.assert_allclose(to_numpy(comb), expected_comb, atol=0, rtol=comb_bound(inputs))


def plain_sinkhorn(logits: list[list[float]]) -> list[list[float]]:
    """One token's comb with nothing but loops and the exponential."""
    n = range(len(logits))
    top = [max(row) for row in logits]
    comb = [[float(np.exp(logits[s][d] - top[s])) for d in n] for s in n]
    comb = [[value / sum(row) + HYPER_EPS for value in row] for row in comb]
    for i in range(ITERATIONS):
        if i > 0:
            comb = [[value / (sum(row) + HYPER_EPS) for value in row] for row in comb]
        columns = [sum(comb[s][d] for s in n) + HYPER_EPS for d in n]
        comb = [[comb[s][d] / columns[d] for d in n] for s in n]
    return comb


def test_comb_equals_a_plain_loop_and_is_doubly_stochastic(executor: str) -> None:
    case = Case(LAYERS, 4, 64)
    inputs = make_inputs(case)
    _, _, comb = ops.hyper_pre(*on_mlx(inputs), **SETTINGS)
    mx.eval(comb)
    streams, fn, base, scale, _ = (a.astype(np.float64) for a in inputs)
    flat = streams.reshape(case.n_tokens, -1)
    flat = flat / np.sqrt(np.mean(flat**2, 1, keepdims=True) + NORM_EPS)
    logits = (flat @ fn[8:].T * scale[2] + base[8:]).reshape(-1, 4, 4)
    expected = np.array([plain_sinkhorn(token.tolist()) for token in logits])
    np.testing.assert_allclose(to_numpy(comb), expected, atol=0, rtol=comb_bound(inputs))
    # The last step divides columns; rows are as far off as 20 iterations leave them.
    np.testing.assert_allclose(to_numpy(comb).sum(1), 1, atol=HYPER_EPS + 8 * EPS)
    np.testing.assert_allclose(to_numpy(comb).sum(2), 1, atol=0.01)


def test_streams_stay_bounded_over_all_layers(executor: str) -> None:
    case = Case(3, 4, 64)
    streams = make_inputs(case)[0]
    on_device, expected = mx.array(streams), streams.astype(np.float64)
    largest = np.abs(streams).max()
    for layer in range(LAYERS):
        weights = make_inputs(case, seed=layer)[1:]
        x, post, comb = ops.hyper_pre(on_device, *on_mlx(weights), **SETTINGS)
        on_device = ops.hyper_post(on_device, x, post, comb)
        mx.eval(on_device)
        x, post, comb = reference.hyper_pre(expected, *weights, **SETTINGS)
        # Columns of comb add up to 1: mixing averages, and post is below 2.
        largest += 2 * np.abs(x).max()
        expected = reference.hyper_post(expected, x, post, comb)
        assert np.abs(to_numpy(on_device)).max() <= largest
    # Averages do not amplify errors, so those of the layers add up.
    bound = LAYERS * (2 * x_bound([streams, *weights]) + comb_bound([streams, *weights]) * 3)
    np.testing.assert_allclose(to_numpy(on_device), expected, atol=bound * 3, rtol=0)


def run_all(case: Case) -> list[mx.array]:
    """Results of the three ops."""
    results = [
        *ops.hyper_pre(*on_mlx(make_inputs(case)), **SETTINGS),
        ops.hyper_post(*on_mlx(make_post_inputs(case))),
        ops.hyper_head(*on_mlx(make_inputs(case, outputs=case.n_streams)), **HEAD_SETTINGS),
    ]
    mx.eval(results)
    return results


@pytest.mark.parametrize("case", [Case(5, 3, 48), Case(9, 4, 256)], ids=str)
def test_a_token_does_not_depend_on_its_batch(case: Case, executor: str) -> None:
    streams, *weights = on_mlx(make_inputs(case))
    _, *head_weights = on_mlx(make_inputs(case, outputs=case.n_streams))
    per_token = on_mlx(make_post_inputs(case))
    together = [
        *ops.hyper_pre(streams, *weights, **SETTINGS),
        ops.hyper_post(*per_token),
        ops.hyper_head(streams, *head_weights, **HEAD_SETTINGS),
    ]
    for t in range(case.n_tokens):
        one = slice(t, t + 1)
        alone = [
            *ops.hyper_pre(streams[one], *weights, **SETTINGS),
            ops.hyper_post(*(a[one] for a in per_token)),
            ops.hyper_head(streams[one], *head_weights, **HEAD_SETTINGS),
        ]
        assert all(same_bits(a, b[one]) for a, b in zip(alone, together, strict=True))


def test_instruction_sets_agree_to_the_bit(each_isa: list[str]) -> None:
    results = [run_all(Case(5, 3, 48)) + run_all(Case(3, 4, 256)) for _ in each_isa]
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("case", [Case(5, 3, 48), Case(9, 4, 4096)], ids=str)
def test_thread_orders_change_no_bit(case: Case, each_order: Callable[[], Iterator[str]]) -> None:
    results = [run_all(case) for _ in each_order()]
    assert all(same_bits(*pair) for r in results[1:] for pair in zip(r, results[0], strict=True))


def test_post_has_the_same_bits_on_every_executor(
    each_executor: Callable[[], Iterator[str]],
) -> None:
    results = []
    for _ in each_executor():
        results.append(ops.hyper_post(*on_mlx(make_post_inputs(Case(9, 5, 112)))))
        mx.eval(results[-1])
    assert all(same_bits(a, results[0]) for a in results)


def test_nan_stays_in_its_token(executor: str) -> None:
    streams, *weights = make_inputs(Case(5, 4, 64))
    clean = ops.hyper_pre(*on_mlx([streams, *weights]), **SETTINGS)
    streams[2, 1, 7] = np.nan
    results = ops.hyper_pre(*on_mlx([streams, *weights]), **SETTINGS)
    mx.eval(clean, results)
    others = np.array([0, 1, 3, 4])
    for result, expected in zip(results, clean, strict=True):
        assert np.isnan(to_numpy(result)[2]).all()
        np.testing.assert_array_equal(to_numpy(result)[others], to_numpy(expected)[others])


@pytest.mark.parametrize("case", [Case(1, 4, 4096), Case(33, 4, 256)], ids=str)
def test_threads_change_no_bit(case: Case, each_thread_count: Callable[[], Iterator[int]]) -> None:
    results = [run_all(case) for _ in each_thread_count()]
    for other in results[1:]:
        assert all(same_bits(a, b) for a, b in zip(results[0], other, strict=True))


def shifted(a: mx.array) -> mx.array:
    """The same values as a row-contiguous view that begins 4 bytes into its buffer."""
    return mx.concatenate([mx.zeros(1), a.reshape(-1)])[1:].reshape(a.shape)


def test_strided_inputs_are_accepted(executor: str) -> None:
    case = Case(3, 3, 48)
    views = [strided(a) for a in on_mlx(make_inputs(case))]
    head_views = [strided(a) for a in on_mlx(make_inputs(case, outputs=case.n_streams))]
    post_views = [strided(a) for a in on_mlx(make_post_inputs(case))]
    results = [
        *ops.hyper_pre(*views, **SETTINGS),
        ops.hyper_post(*post_views),
        ops.hyper_head(*head_views, **HEAD_SETTINGS),
    ]
    assert all(same_bits(a, b) for a, b in zip(results, run_all(case), strict=True))


def test_inputs_may_begin_at_any_float(executor: str) -> None:
    case = Case(3, 3, 48)
    views = [shifted(a) for a in on_mlx(make_inputs(case))]
    head_views = [shifted(a) for a in on_mlx(make_inputs(case, outputs=case.n_streams))]
    post_views = [shifted(a) for a in on_mlx(make_post_inputs(case))]
    mx.eval(views, head_views, post_views)
    results = [
        *ops.hyper_pre(*views, **SETTINGS),
        ops.hyper_post(*post_views),
        ops.hyper_head(*head_views, **HEAD_SETTINGS),
    ]
    assert all(same_bits(a, b) for a, b in zip(results, run_all(case), strict=True))


def test_no_tokens_give_no_rows(executor: str) -> None:
    x, post, comb, streams, head = run_all(Case(0, 4, 32))
    assert x.shape == head.shape == (0, 32)
    assert post.shape == (0, 4)
    assert comb.shape == (0, 4, 4)
    assert streams.shape == (0, 4, 32)


def test_extreme_streams_give_finite_results(executor: str) -> None:
    inputs = make_inputs(Case(3, 4, 64))
    inputs[0] *= np.array([0, 1e-30, 1e15], np.float32)[:, None, None]
    inputs[2][:] = np.resize([-200, 200, 0], inputs[2].size)
    results = ops.hyper_pre(*on_mlx(inputs), **SETTINGS)
    assert all(np.isfinite(to_numpy(r)).all() for r in results)


def test_reference_on_numbers_worked_by_hand() -> None:
    # Two streams of ones, fn zero: pre = sigmoid(0), post = 1, comb = softmax of equal logits.
    streams, zeros = np.ones((1, 2, 16)), np.zeros((8, 32))
    x, post, comb = reference.hyper_pre(
        streams, zeros, np.zeros(8), np.ones(3), np.full(16, 3.0), **SETTINGS
    )
    np.testing.assert_allclose(x, np.full((1, 16), 3), rtol=1e-6)  # rmsnorm of a constant is 1
    np.testing.assert_allclose(post, [[1, 1]])
    np.testing.assert_allclose(comb, np.full((1, 2, 2), 0.5), rtol=1e-5)
    # The first axis of comb is the source: stream 0 goes to stream 1 alone.
    moved = reference.hyper_post(
        np.stack([np.full((1, 16), 5.0), np.full((1, 16), 7.0)], 1),
        np.ones((1, 16)),
        np.array([[0.0, 2.0]]),
        np.array([[[0.0, 1.0], [0.0, 0.0]]]),
    )
    np.testing.assert_array_equal(moved[0, :, 0], [0, 7])


def good(op: str) -> dict[str, mx.array | float | int]:
    pre = dict(zip(("streams", "fn", "base", "scale", "norm"), pre_arrays(), strict=True))
    if op == "hyper_pre":
        return pre | SETTINGS
    if op == "hyper_head":
        rows = {"fn": mx.zeros((4, 128)), "base": mx.zeros(4), "scale": mx.zeros(1)}
        return pre | rows | HEAD_SETTINGS
    names = ("streams", "y", "post", "comb")
    return dict(zip(names, on_mlx(make_post_inputs(Case(2, 4, 32))), strict=True))


def pre_arrays() -> list[mx.array]:
    return on_mlx(make_inputs(Case(2, 4, 32)))


@pytest.mark.parametrize(
    ("op", "change", "message"),
    [
        (
            "hyper_pre",
            {"streams": mx.zeros((2, 9, 32))},
            r"\[hyper_pre\] streams must be \[T, S, D\] with S in 1\.\.8 and D a multiple of "
            r"16; got \(2,9,32\)",
        ),
        ("hyper_pre", {"streams": mx.zeros((2, 4, 24))}, r"D a multiple of 16; got \(2,4,24\)"),
        ("hyper_pre", {"streams": mx.zeros((8, 32))}, r"must be \[T, S, D\].*; got \(8,32\)"),
        ("hyper_pre", {"fn": mx.zeros((24, 64))}, r"fn must be .* = \(24,128\); got \(24,64\)"),
        ("hyper_pre", {"fn": mx.zeros((24, 128), mx.float16)}, r"fn must be float32; got float16"),
        ("hyper_pre", {"base": mx.zeros(4)}, r"base must be \[\(2 \+ S\) S\] = \(24\); got \(4\)"),
        ("hyper_pre", {"scale": mx.zeros(1)}, r"scale must be \[3\] = \(3\); got \(1\)"),
        ("hyper_pre", {"norm": mx.zeros(16)}, r"norm must be \[D\] = \(32\); got \(16\)"),
        ("hyper_pre", {"iterations": 0}, r"iterations must be in 1\.\.10000; got 0"),
        ("hyper_post", {"y": mx.zeros((1, 32))}, r"\[hyper_post\] y must be .*; got \(1,32\)"),
        ("hyper_post", {"post": mx.zeros((2, 3))}, r"post must be \[T, S\] = \(2,4\); got \(2,3\)"),
        ("hyper_post", {"comb": mx.zeros((2, 16))}, r"comb must be \[T, S, S\] = \(2,4,4\)"),
        ("hyper_head", {"fn": mx.zeros((24, 128))}, r"\[hyper_head\] fn must be \[S, S \* D\]"),
        ("hyper_head", {"scale": mx.zeros(3)}, r"scale must be \[1\] = \(1\); got \(3\)"),
    ],
)
def test_bad_arguments_name_the_argument(op: str, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(ops, op)(**(good(op) | change))
