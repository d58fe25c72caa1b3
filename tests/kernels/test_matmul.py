"""Products with packed matrices against their reference."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from arrays import same_bits, strided, to_numpy
from blocks import ELEMENTS, FORMATS, product_bound, random_rows
from mlx_dsv4 import _ext, ops, reference


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
def test_matches_reference(case: Case, format: str, isa: str) -> None:
    check(make_x(case.n_tokens, case.k), random_rows((case.n_rows, case.k), format), format)


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("case", ODD_CASES, ids=str)
def test_rows_need_not_fill_lanes(case: Case, format: str, isa: str) -> None:
    check(make_x(case.n_tokens, case.k), random_rows((case.n_rows, case.k), format), format)


@pytest.mark.parametrize("n_tokens", [1, 9])
def test_random_blocks_match_reference(n_tokens: int, isa: str) -> None:
    rng = np.random.default_rng(2)
    q8_0 = rng.integers(0, 256, (40, 6, 34), np.uint8)
    q8_0[..., 1] = q8_0[..., 1] & 0x83 | 0x38  # scales of about one, both signs
    mxfp4 = rng.integers(0, 256, (40, 6, 17), np.uint8)
    mxfp4[..., 0] = rng.integers(118, 136, (40, 6))
    for blocks, format in ((q8_0, "q8_0"), (mxfp4, "mxfp4")):
        check(make_x(n_tokens, 192), blocks.reshape(40, -1), format)


@pytest.mark.parametrize("format", FORMATS)
def test_a_token_does_not_depend_on_its_batch(format: str, isa: str) -> None:
    k = 1056 if format in ELEMENTS else 1050
    x, weight = mx.array(make_x(max(BATCHES), k)), mx.array(random_rows((37, k), format))
    alone = [ops.matmul(x[t : t + 1], weight, format=format) for t in range(max(BATCHES))]
    for n in BATCHES:
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


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("n_tokens", [1, 3, 20])
def test_instruction_sets_agree_to_the_bit(
    n_tokens: int, format: str, each_isa: Iterator[str]
) -> None:
    x, weight = mx.array(make_x(n_tokens, 672)), mx.array(random_rows((37, 672), format))
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
def test_each_group_of_rows_multiplies_its_part(n_tokens: int, format: str, isa: str) -> None:
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


@pytest.mark.parametrize("k", [96, 45])
def test_bfloat16_tokens_are_converted_exactly(k: int, isa: str) -> None:
    x, weight = mx.array(make_x(3, k)).astype(mx.bfloat16), mx.array(random_rows((9, k), "f16"))
    out = ops.matmul(x, weight, format="f16")
    assert same_bits(out, ops.matmul(x.astype(mx.float32), weight, format="f16"))


@pytest.mark.parametrize("n_tokens", [3, 10])
def test_nan_and_infinity_stay_in_their_token(n_tokens: int, isa: str) -> None:
    x, weight = make_x(n_tokens, 96), random_rows((9, 96), "q8_0")
    clean = to_numpy(ops.matmul(mx.array(x), mx.array(weight), format="q8_0"))
    x[1, 40], x[2, 95] = np.nan, np.inf
    out = to_numpy(ops.matmul(mx.array(x), mx.array(weight), format="q8_0"))
    assert np.isnan(out[1]).all()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out[2], reference.matmul(x, weight, format="q8_0")[2])
    others = [t for t in range(n_tokens) if t not in (1, 2)]
    np.testing.assert_array_equal(out[others], clean[others])


def test_strided_tokens_are_accepted() -> None:
    x, weight = mx.array(make_x(3, 64)), mx.array(random_rows((9, 64), "q8_0"))
    assert same_bits(
        ops.matmul(x, weight, format="q8_0"), ops.matmul(strided(x), weight, format="q8_0")
    )


@pytest.mark.parametrize("format", FORMATS)
def test_weights_are_read_where_a_file_is_mapped(format: str, tmp_path: Path, isa: str) -> None:
    k = 64 if format in ELEMENTS else 61
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
    tokens = mx.array([8, 0], dtype=mx.int32)
    expected = reference.embed(np.array([8, 0]), weight, format=format)
    np.testing.assert_array_equal(np.array(ops.embed(tokens, mapped, format=format)), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_embed_decodes_every_code_exactly(format: str, isa: str) -> None:
    every_half = np.arange(2**16, dtype=np.uint16).view(np.uint8)
    every_byte = np.arange(256, dtype=np.uint8)
    q8_0 = np.concatenate([every_half.reshape(-1, 2), np.resize(every_byte, (2**16, 32))], 1)
    mxfp4 = np.concatenate([every_byte[:, None], np.resize(every_byte, (256, 16))], 1)
    rows = {
        "f32": random_rows((256, 19), "f32"),
        "f16": every_half.reshape(256, -1),
        "bf16": every_half.reshape(256, -1),
        "q8_0": q8_0.reshape(256, -1),
        "mxfp4": mxfp4,
    }[format]
    tokens = np.arange(256, dtype=np.int32)
    out = np.array(ops.embed(mx.array(tokens), mx.array(rows), format=format))
    with np.errstate(invalid="ignore", over="ignore"):
        expected = reference.embed(tokens, rows, format=format)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(out), ~numbers)
    np.testing.assert_array_equal(out[numbers].view(np.int32), expected[numbers].view(np.int32))


def test_embed_on_a_block_worked_by_hand(isa: str) -> None:
    # Byte i holds value i in its low half and value i + 16 in its high half; 0x80 is 2^1.
    block = mx.array([[0x80] + 16 * [0xA1]], dtype=mx.uint8)
    out = ops.embed(mx.array([0], dtype=mx.int32), block, format="mxfp4")
    assert out.tolist() == [16 * [1.0] + 16 * [-2.0]]


def test_no_tokens_give_no_rows() -> None:
    weight = mx.array(random_rows((9, 32), "q8_0"))
    product = ops.matmul(mx.zeros((0, 32)), weight, format="q8_0")
    rows = ops.embed(mx.zeros(0, mx.int32), weight, format="q8_0")
    mx.eval(product, rows)
    assert (product.shape, rows.shape) == ((0, 9), (0, 32))


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
        ({"format": "q4_k"}, "format must be one of f32, f16, bf16, q8_0, mxfp4; got q4_k"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": mx.zeros(2)}, r"\[embed\] tokens must be int32; got float32"),
        ({"tokens": mx.zeros((1, 2), mx.int32)}, r"tokens must be \[T\]; got \(1,2\)"),
        ({"weight": mx.zeros((6, 67), mx.uint8)}, r"a multiple of 34 bytes; got \(6,67\)"),
        ({"weight": mx.zeros((6, 68), mx.int8)}, "weight must be uint8; got int8"),
        ({"format": "Q8_0"}, "format must be one of .*; got Q8_0"),
    ],
)
def test_bad_embed_arguments_name_the_argument(change: dict, message: str) -> None:
    good = {
        "tokens": mx.zeros(2, mx.int32),
        "weight": mx.zeros((6, 68), mx.uint8),
        "format": "q8_0",
    }
    with pytest.raises(ValueError, match=message):
        ops.embed(**(good | change))


@pytest.mark.parametrize("token", [-1, 6])
def test_tokens_outside_the_matrix_are_named(token: int) -> None:
    weight = mx.zeros((6, 68), mx.uint8)
    message = rf"\[embed\] tokens must be in 0\.\.5; got {token} at index 1"
    with pytest.raises(ValueError, match=message):
        ops.embed(mx.array([0, token]), weight, format="q8_0")
    unknown = mx.array([0, token - 1]) + mx.array([0, 1])  # not computed yet
    rows = np.array(ops.embed(unknown, weight, format="q8_0"))
    assert (rows[0] == 0).all()
    assert np.isnan(rows[1]).all()


def test_weights_that_would_need_a_copy_are_refused() -> None:
    weight = mx.zeros((12, 68), mx.uint8)[::2]
    message = "weight must be row-contiguous, it is never copied"
    with pytest.raises(ValueError, match=message):
        mx.eval(ops.matmul(mx.zeros((1, 64)), weight, format="q8_0"))
    with pytest.raises(ValueError, match=message):
        mx.eval(ops.embed(mx.zeros(1, mx.int32), weight, format="q8_0"))
