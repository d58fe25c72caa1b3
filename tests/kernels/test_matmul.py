"""Products with packed matrices against their reference."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from arrays import same_bits, strided, to_numpy
from blocks import ELEMENTS, FORMATS, product_bound
from executors import SIMULATORS
from mlx_dsv4 import _ext, ops, reference
from mlx_dsv4.gguf.random_rows import CODED_FORMATS, random_rows


@dataclass(frozen=True)
class Case:
    n_tokens: int
    n_rows: int
    k: int

    def __str__(self) -> str:
        return f"T{self.n_tokens}-N{self.n_rows}-K{self.k}"


CASES = [
    Case(1, 1, 32),  # one block
    Case(2, 70, 96),  # rows end inside a panel and inside a tile
    Case(4, 33, 1056),  # the most tokens whose rows are decoded in registers
    Case(5, 33, 1056),  # fewer tokens than a tile; K ends inside a panel
    Case(13, 9, 544),  # tokens end inside a tile
    Case(200, 34, 64),  # more tokens than a panel
]
ODD_CASES = [Case(1, 5, 1), Case(3, 6, 17), Case(7, 35, 535)]
BATCHES = (*range(1, 10), 33, 130, 200)
MOST_SIMULATED_TOKENS = 33


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads."""
    before = _ext.num_threads()
    yield
    _ext.set_num_threads(before)


def make_x(n_tokens: int, width: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n_tokens, width)).astype(np.float32)


def check(x: np.ndarray, weight: np.ndarray, format: str) -> None:
    out = ops.matmul(mx.array(x), mx.array(weight), format=format)
    mx.eval(out)
    assert out.dtype == mx.float32
    error = np.abs(to_numpy(out) - reference.matmul(x, weight, format=format))
    assert (error <= product_bound(x, reference.dequantize(weight, format))).all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(case: Case, format: str, executor: str) -> None:
    check(make_x(case.n_tokens, case.k), random_rows((case.n_rows, case.k), format), format)


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("case", ODD_CASES, ids=str)
def test_rows_need_not_fill_lanes(case: Case, format: str, executor: str) -> None:
    check(make_x(case.n_tokens, case.k), random_rows((case.n_rows, case.k), format), format)


@pytest.mark.parametrize("n_tokens", [1, 9])
def test_random_blocks_match_reference(n_tokens: int, executor: str) -> None:
    rng = np.random.default_rng(2)
    q8_0 = rng.integers(0, 256, (40, 6, 34), np.uint8)
    q8_0[..., 1] = q8_0[..., 1] & 0x83 | 0x38  # scales of about one, both signs
    mxfp4 = rng.integers(0, 256, (40, 6, 17), np.uint8)
    mxfp4[..., 0] = rng.integers(118, 136, (40, 6))
    for blocks, format in ((q8_0, "q8_0"), (mxfp4, "mxfp4")):
        check(make_x(n_tokens, 192), blocks.reshape(40, -1), format)


@pytest.mark.parametrize("format", FORMATS)
def test_a_token_does_not_depend_on_its_batch(format: str, executor: str) -> None:
    k = 1056 if format in ELEMENTS else 1050
    batches = [n for n in BATCHES if executor not in SIMULATORS or n <= MOST_SIMULATED_TOKENS]
    x, weight = mx.array(make_x(max(batches), k)), mx.array(random_rows((37, k), format))
    alone = [ops.matmul(x[t : t + 1], weight, format=format) for t in range(max(batches))]
    for n in batches:
        together = ops.matmul(x[:n], weight, format=format)
        assert same_bits(together, mx.concatenate(alone[:n]))


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_more_tokens_than_one_block_of_scratch_holds(dtype: mx.Dtype) -> None:
    x = mx.array(make_x(1030, 128)).astype(dtype)
    weight = mx.array(random_rows((8, 64), "q8_0"))
    whole = ops.matmul(x, weight, format="q8_0", groups=2)
    parts = [
        ops.matmul(x[begin : begin + 103], weight, format="q8_0", groups=2)
        for begin in range(0, 1030, 103)
    ]
    assert same_bits(whole, mx.concatenate(parts))


@pytest.mark.parametrize("format", FORMATS + CODED_FORMATS)
@pytest.mark.parametrize("n_tokens", [1, 3, 20])
def test_instruction_sets_agree_to_the_bit(
    n_tokens: int, format: str, each_isa: Iterator[str]
) -> None:
    k = 768 if format in CODED_FORMATS else 672
    x, weight = mx.array(make_x(n_tokens, k)), mx.array(random_rows((37, k), format))
    results = []
    for _ in each_isa:
        results.append(ops.matmul(x, weight, format=format))
        mx.eval(results[-1])
    assert all(same_bits(r, results[0]) for r in results)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("n_tokens", [1, 20])
def test_the_number_of_threads_does_not_matter(n_tokens: int) -> None:
    x, weight = mx.array(make_x(n_tokens, 1024)), mx.array(random_rows((517, 1024), "q8_0"))
    results = []
    for n in (1, 2, 3):
        _ext.set_num_threads(n)
        results.append(ops.matmul(x, weight, format="q8_0"))
        mx.eval(results[-1])
    assert all(same_bits(r, results[0]) for r in results)


@pytest.mark.parametrize("format", ["bf16", "mxfp4"])
@pytest.mark.parametrize("n_tokens", [1, 12])
def test_each_group_of_rows_multiplies_its_part(n_tokens: int, format: str, executor: str) -> None:
    groups, k, rows = 4, 96, 37  # a panel of rows reaches into the next group
    x, weight = make_x(n_tokens, groups * k), random_rows((groups * rows, k), format)
    out = ops.matmul(mx.array(x), mx.array(weight), format=format, groups=groups)
    parts = [
        ops.matmul(
            mx.array(x[:, g * k : (g + 1) * k]),
            mx.array(weight[g * rows : (g + 1) * rows]),
            format=format,
        )
        for g in range(groups)
    ]
    assert same_bits(out, mx.concatenate(parts, axis=1))
    expected = reference.matmul(x, weight, format=format, groups=groups)
    np.testing.assert_allclose(to_numpy(out), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("n_tokens", [3, 12])
@pytest.mark.parametrize("ragged", [False, True])
def test_bfloat16_tokens_are_converted_exactly(
    ragged: bool, n_tokens: int, format: str, executor: str
) -> None:
    k = 96 if not ragged else 608 if format in ELEMENTS else 45
    x = mx.array(make_x(n_tokens, k)).astype(mx.bfloat16)
    weight = random_rows((9, k), format)
    out = ops.matmul(x, mx.array(weight), format=format)
    assert same_bits(out, ops.matmul(x.astype(mx.float32), mx.array(weight), format=format))
    error = np.abs(to_numpy(out) - reference.matmul(to_numpy(x), weight, format=format))
    assert (error <= product_bound(to_numpy(x), reference.dequantize(weight, format))).all()


@pytest.mark.parametrize("n_tokens", [3, 10])
def test_nan_and_infinity_stay_in_their_token(n_tokens: int, executor: str) -> None:
    x, weight = make_x(n_tokens, 96), random_rows((9, 96), "q8_0")
    clean = to_numpy(ops.matmul(mx.array(x), mx.array(weight), format="q8_0"))
    x[1, 40], x[2, 95] = np.nan, np.inf
    out = to_numpy(ops.matmul(mx.array(x), mx.array(weight), format="q8_0"))
    assert np.isnan(out[1]).all()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out[2], reference.matmul(x, weight, format="q8_0")[2])
    others = [t for t in range(n_tokens) if t not in (1, 2)]
    np.testing.assert_array_equal(out[others], clean[others])


@pytest.mark.parametrize("n_tokens", [3, 10])
def test_nan_and_infinity_of_a_weight_stay_in_their_row(n_tokens: int, executor: str) -> None:
    x, weight = make_x(n_tokens, 64), random_rows((20, 64), "f32")
    clean = to_numpy(ops.matmul(mx.array(x), mx.array(weight), format="f32"))
    weight.view(np.float32)[2, 40], weight.view(np.float32)[9, 3] = np.nan, np.inf
    out = to_numpy(ops.matmul(mx.array(x), mx.array(weight), format="f32"))
    assert np.isnan(out[:, 2]).all()
    assert np.isinf(out[:, 9]).all()
    others = [row for row in range(20) if row not in (2, 9)]
    np.testing.assert_array_equal(out[:, others], clean[:, others])


def test_strided_tokens_are_accepted(executor: str) -> None:
    x, weight = mx.array(make_x(3, 64)), mx.array(random_rows((9, 64), "q8_0"))
    assert same_bits(
        ops.matmul(x, weight, format="q8_0"), ops.matmul(strided(x), weight, format="q8_0")
    )


@pytest.mark.parametrize("format", FORMATS + CODED_FORMATS)
def test_weights_are_read_where_a_file_is_mapped(
    format: str, tmp_path: Path, executor: str
) -> None:
    k = 2 * ELEMENTS[format] if format in ELEMENTS else 61
    weight = random_rows((9, k), format)
    # The matrix ends where the mapping ends: reading further would end the process.
    offset = 8192 - weight.nbytes
    path = tmp_path / "weights"
    path.write_bytes(bytes(offset) + weight.tobytes())
    mapped = ops.MappedFile(path).view(offset, weight.shape)
    for n_tokens in (1, 9):
        x = mx.array(make_x(n_tokens, k))
        out = ops.matmul(x, mapped, format=format)
        assert same_bits(out, ops.matmul(x, mx.array(weight), format=format))


def test_no_tokens_give_no_rows(executor: str) -> None:
    weight = mx.array(random_rows((9, 32), "q8_0"))
    product = ops.matmul(mx.zeros((0, 32)), weight, format="q8_0")
    mx.eval(product)
    assert product.shape == (0, 9)


def test_reference_on_numbers_worked_by_hand() -> None:
    weight = np.array([[1, 2], [3, 4]], np.float32).view(np.uint8)
    x = np.array([[10, 1, 100, 1]], np.float32)
    out = reference.matmul(x, weight, format="f32", groups=2)
    np.testing.assert_array_equal(out, [[12, 304]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": mx.zeros(64)}, r"\[matmul\] x must be \[T, groups \* K\] with groups = 1; got \(64"),
        ({"x": mx.zeros((1, 64), mx.float16)}, "x must be float32 or bfloat16; got float16"),
        ({"x": mx.zeros((1, 48))}, "rows of weight must hold a positive multiple of 32 .*; got 48"),
        ({"x": mx.zeros((1, 96))}, r"row_bytes = 102 for 96 values; got \(6,68\)"),
        ({"x": mx.zeros((1, 0))}, "a positive multiple of 32 values; got 0"),
        ({"weight": mx.zeros((6, 68))}, "weight must be uint8; got float32"),
        ({"weight": mx.zeros(68, mx.uint8)}, r"weight must be \[N, row_bytes\] .*; got \(68\)"),
        ({"format": "q8_1"}, "format must be one of f32, f16, bf16, q8_0, mxfp4, .*; got q8_1"),
        ({"groups": 0}, "groups must be positive; got 0"),
        ({"groups": 3}, r"x must be .* with groups = 3; got \(1,64\)"),
        (
            {"x": mx.zeros((1, 256)), "groups": 4},
            "weight must have a multiple of groups = 4 rows; got 6",
        ),
    ],
)
def test_bad_arguments_name_the_argument(change: dict, message: str) -> None:
    good = {"x": mx.zeros((1, 64)), "weight": mx.zeros((6, 68), mx.uint8), "format": "q8_0"}
    with pytest.raises(ValueError, match=message):
        ops.matmul(**(good | change))


def test_weights_that_would_need_a_copy_are_refused(executor: str) -> None:
    weight = mx.zeros((12, 68), mx.uint8)[::2]
    message = "weight must be row-contiguous, it is never copied"
    with pytest.raises(ValueError, match=message):
        mx.eval(ops.matmul(mx.zeros((1, 64)), weight, format="q8_0"))
