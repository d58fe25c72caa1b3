"""Selection of index rows against its reference."""

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, same_bits, to_numpy
from executors import running_on, simulated_extension
from indexer_inputs import SCALE, Case, make_inputs, place
from mlx_dsv4 import _ext, ops, reference

REALISTIC = pytest.mark.realistic


def expect_topk(scores: np.ndarray, *, start: int, ratio: int, k: int) -> None:
    selected = ops.indexer_topk(mx.array(scores.astype(np.float32)), start=start, ratio=ratio, k=k)
    mx.eval(selected)
    expected = reference.indexer_topk(scores, start=start, ratio=ratio, k=k)
    np.testing.assert_array_equal(np.array(selected), expected)


NORMAL = np.random.default_rng(4).standard_normal(1000).astype(np.float32)
HARD = {
    "normal": NORMAL,
    "few values": np.round(NORMAL),
    "pairs": np.repeat(NORMAL[:500], 2),
    "all equal": np.full(1000, -1.5),
    "all -inf": np.full(1000, -np.inf),
    "all nan": np.full(1000, np.nan),
    "zeros of both signs": np.copysign(0, NORMAL),
    "one unit apart": 1 + np.arange(1000)[::-1] * 2 * EPS,
    "subnormal": np.round(NORMAL * 1000) * 2.0**-149,
    "mostly nan": np.where(NORMAL > 2, NORMAL, np.nan),
    "infinities": np.select([NORMAL > 1, NORMAL < -1, NORMAL < 0], [np.inf, -np.inf, np.nan], 0),
}


@pytest.mark.parametrize("kind", HARD)
def test_topk_of_hard_scores(kind: str, executor: str) -> None:
    scores = HARD[kind][None]
    for k in (1, 7, 512, 999, 1000, 1001, 1500):
        expect_topk(scores, start=3999, ratio=4, k=k)


def test_topk_of_many_tokens_ignores_hidden_rows(executor: str) -> None:
    rng = np.random.default_rng(5)
    for start in (0, 1, 57, 64):
        scores = rng.integers(-3, 3, (70, (start + 70) // 4)).astype(np.float32)
        for t in range(70):
            scores[t, (start + t + 1) // 4 :] = 9  # better than every visible row
        expect_topk(scores, start=start, ratio=4, k=16)


@pytest.mark.parametrize(
    "n_rows", [8191, 8192, 8193, 20_000, pytest.param(262_144, marks=REALISTIC)]
)
def test_topk_of_a_long_context(n_rows: int, executor: str) -> None:
    """Ties stand on both sides of every edge of the slices that GPU kernels select from."""
    scores = np.random.default_rng(6).standard_normal((2, n_rows)).astype(np.float32)
    scores[:, ::1000] = scores[:, 8185:8200] = np.sort(scores[0])[-500]
    scores[1, 1::2] = np.nan
    for k in (1, 512, 2048, 2049):
        expect_topk(scores, start=4 * n_rows - 2, ratio=4, k=k)


def test_tokens_of_one_call_may_see_different_slices(executor: str) -> None:
    scores = np.random.default_rng(7).integers(-9, 9, (18, 8200)).astype(np.float32)
    expect_topk(scores, start=8182, ratio=1, k=512)


@pytest.mark.realistic
def test_a_million_tokens_are_selected_from(executor: str) -> None:
    case = Case(1, 2, 16, 4 * 262_144 - 1, 4, mx.bfloat16)
    inputs = make_inputs(case)
    scores = ops.indexer_scores(**inputs, **place(case))
    selected = ops.indexer_select(**inputs, **place(case), k=512)
    expected = reference.indexer_topk(to_numpy(scores), start=case.start, ratio=4, k=512)
    np.testing.assert_array_equal(np.array(selected), expected)


def bound_bytes(launch: dict, index: int) -> int:
    return next(n_bytes for i, _, n_bytes in launch["bindings"] if i == index)


@pytest.mark.simulated
def test_selection_needs_little_memory() -> None:
    """The scores of this call are 11.1 MiB, the candidates of their slices 5.5 MiB."""
    scratch = 16 << 20
    case = Case(350, 1, 16, 4 * 8300 - 350, 4, mx.bfloat16)
    inputs = make_inputs(case)
    mx.eval(inputs)
    with running_on("sim"):
        controls = simulated_extension().controls
        controls.clear_launches()
        held = mx.get_active_memory()
        mx.reset_peak_memory()
        selected = ops.indexer_select(**inputs, **place(case), k=2048)
        mx.eval(selected)
        peak = mx.get_peak_memory() - held
        launches = controls.launches()
    kernels = [launch["kernel"] for launch in launches]
    assert kernels == ["indexer_scores_bfloat", "indexer_topk", "indexer_merge"] * 2
    scores, candidates = (bound_bytes(launches[i], index) for i, index in ((0, 3), (1, 1)))
    assert scratch * 3 // 4 < scores + candidates <= scratch
    assert peak <= scratch + selected.nbytes + (64 << 10)
    with running_on(_ext.isa()):
        assert same_bits(selected, ops.indexer_select(**inputs, **place(case), k=2048))


@pytest.mark.simulated
def test_candidates_of_many_tokens_need_little_memory() -> None:
    """They would be 16 KiB more than the scratch."""
    n_tokens, n_rows, k = 1025, 8193, 2048
    scores = mx.random.normal((n_tokens, n_rows), key=mx.random.key(8))
    mx.eval(scores)
    place = {"start": 4 * n_rows - n_tokens, "ratio": 4, "k": k}
    with running_on("sim"):
        controls = simulated_extension().controls
        controls.clear_launches()
        selected = ops.indexer_topk(scores, **place)
        mx.eval(selected)
        launches = controls.launches()
    assert [launch["grid"] for launch in launches] == [
        [2, 1024, 1], [1, 1024, 1], [2, 1, 1], [1, 1, 1]
    ]  # fmt: skip
    assert bound_bytes(launches[0], 1) == 16 << 20
    with running_on(_ext.isa()):
        assert same_bits(selected, ops.indexer_topk(scores, **place))


@pytest.mark.parametrize("delta", [-1, 0, 1])
def test_select_around_k_spans(delta: int, executor: str) -> None:
    case = Case(1, 16, 16, 16 * 4 - 1 + delta, 4)
    inputs = make_inputs(case)
    selected = ops.indexer_select(**inputs, **place(case), k=16)
    n_rows = (case.start + 1) // 4
    assert selected.tolist() == [list(range(n_rows)) + [-1] * (16 - n_rows)]


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bf16", "f32"])
def test_prefill_decode_and_composition_select_the_same(dtype: mx.Dtype, executor: str) -> None:
    case = Case(90, 4, 32, 37, 4, dtype)
    inputs = make_inputs(case)
    k = 16
    together = ops.indexer_select(**inputs, **place(case), k=k)
    scores = ops.indexer_scores(**inputs, **place(case))
    composed = ops.indexer_topk(scores, start=case.start, ratio=4, k=k)
    assert same_bits(together, composed)
    expected = reference.indexer_topk(to_numpy(scores), start=case.start, ratio=4, k=k)
    np.testing.assert_array_equal(np.array(together), expected)
    for t in range(case.n_tokens):
        one = slice(t, t + 1)
        alone = ops.indexer_select(
            inputs["q"][one],
            inputs["w"][one],
            inputs["rows"],
            start=case.start + t,
            ratio=4,
            scale=SCALE,
            k=k,
        )
        assert same_bits(alone, together[one])


def test_ties_of_equal_rows_go_to_the_lower_row(executor: str) -> None:
    inputs = make_inputs(Case(1, 4, 16, 399, 4))
    rows = mx.repeat(inputs["rows"][:50], 2, axis=0)
    selected = np.array(
        ops.indexer_select(inputs["q"], inputs["w"], rows, start=399, ratio=4, scale=SCALE, k=21)
    )[0]
    even = selected[selected % 2 == 0]
    assert even.size == 11
    assert set(selected) - set(even) < set(even + 1)


@pytest.mark.parametrize("n_rows", [16, 32, 64, 160])
def test_a_planted_row_is_found(n_rows: int, executor: str) -> None:
    inputs = make_inputs(Case(1, 16, 128, 4 * n_rows - 1, 4))
    for planted in (0, n_rows // 3, n_rows - 1):
        rows = inputs["rows"][:n_rows]
        rows[planted] = 3 * inputs["q"][0, 0]
        selected = ops.indexer_select(
            inputs["q"],
            mx.ones((1, 16)),
            rows,
            start=4 * n_rows - 1,
            ratio=4,
            scale=SCALE,
            k=16,
        )
        assert planted in selected.tolist()[0]


def test_nan_rows_are_selected_last(executor: str) -> None:
    inputs = make_inputs(Case(1, 4, 16, 79, 4))
    rows = inputs["rows"][:20]
    rows[::2] = mx.nan
    for k, expected in (
        (10, list(range(1, 20, 2))),
        (12, sorted([*range(1, 20, 2), 0, 2])),
        (20, list(range(20))),
    ):
        selected = ops.indexer_select(
            inputs["q"], inputs["w"], rows, start=79, ratio=4, scale=SCALE, k=k
        )
        assert selected.tolist() == [expected]
