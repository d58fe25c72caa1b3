"""FP8, FP4 and Hadamard: the kernels' arithmetic, its reference, and oracles of their own."""

import mlx.core as mx
import numpy as np
import pytest

from arrays import EPS, to_numpy
from mlx_dsv4 import ops
from mlx_dsv4.reference.rounding import (
    fp4_round_trip,
    fp8_round_trip,
    hadamard,
    to_bfloat16,
)

# Every non-negative value of the formats, in order: the definition of their bits.
E4M3 = np.array(
    [m * 2.0**-9 for m in range(8)]
    + [(8 + m) * 2.0 ** (e - 10) for e in range(1, 16) for m in range(8)][:-1]
)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
WIDEST = 2048  # dims of a row on the GPU


def nearest(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """The nearest code, the even one of two; found by looking at all of them."""
    gaps = np.abs(np.abs(x)[..., None] - codes)
    closest = gaps == gaps.min(-1, keepdims=True)
    even = np.arange(len(codes)) % 2 == 0
    index = np.where((closest & even).any(-1), (closest & even).argmax(-1), closest.argmax(-1))
    return np.copysign(codes[index], x)


def block_scale(block: np.ndarray, smallest: float, largest_code: float) -> float:
    """The smallest power of two that lets the block fit, found by counting up."""
    absmax, exponent = max(np.abs(block).max(), smallest), -200
    while largest_code * 2.0**exponent < absmax:
        exponent += 1
    return 2.0**exponent


def fp8_oracle(x: np.ndarray) -> np.ndarray:
    def block(values: np.ndarray) -> np.ndarray:
        scale = block_scale(values, float(np.float32(1e-4)), 448)
        return nearest(values / scale, E4M3) * scale

    return np.concatenate([block(values) for values in x.reshape(-1, 64)]).reshape(x.shape)


def fp4_oracle(x: np.ndarray) -> np.ndarray:
    def block(values: np.ndarray) -> np.ndarray:
        scale = block_scale(values, 6 * 2.0**-126, 6)
        return nearest(values / scale, E2M1) * scale

    return np.concatenate([block(values) for values in x.reshape(-1, 32)]).reshape(x.shape)


def kernel_fp8(values: np.ndarray) -> np.ndarray:
    """FP8 round trip by the kernel: a row of ones has norm 1, its weight remains."""
    rows = [
        ops.window_rows(
            mx.ones((1, len(part))),
            mx.array(part.astype(np.float32)),
            mx.zeros((1, 0, 2)),
            eps=0.0,
            round_trip="fp8",
            dtype=mx.float32,
        )[0]
        for part in np.split(values, range(WIDEST, len(values), WIDEST))
    ]
    return to_numpy(mx.concatenate(rows))


def kernel_hadamard_fp4(values: np.ndarray) -> np.ndarray:
    """Hadamard and FP4 of one row by the kernel: a span of one token that is all ones."""
    dim = len(values)
    rows = ops.compressor_append(
        mx.ones((1, dim)),
        mx.zeros((1, dim)),
        mx.zeros((1, dim)),
        mx.array(values.astype(np.float32)),
        mx.zeros((1, 0, 2)),
        mx.zeros((1, dim)),
        mx.zeros((1, dim)),
        mx.zeros((1, dim)),
        start=0,
        ratio=1,
        first_row=0,
        eps=0.0,
        round_trip="hadamard_fp4",
    )[2]
    return to_numpy(rows[0])


def kernel_fp4(values: np.ndarray) -> np.ndarray:
    """FP4 of one row whose Hadamard transform float32 holds exactly, so that it can be undone."""
    transformed = hadamard(values)
    np.testing.assert_array_equal(transformed, transformed.astype(np.float32))
    return kernel_hadamard_fp4(transformed)


def bfloat16_values(largest: float) -> np.ndarray:
    """Every finite bfloat16 up to ``largest``, in order of its bits, in blocks of 64."""
    bits = np.arange(65536, dtype=np.uint32) << 16
    values = bits.view(np.float32)
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) <= largest, values, 0).astype(np.float64)


# -- the reference against oracles -------------------------------------------------------------


def test_tables_are_the_formats() -> None:
    assert len(E4M3) == 127
    assert E4M3[[1, 7, 8, 56, 126]].tolist() == [2**-9, 7 * 2**-9, 2**-6, 1, 448]


@pytest.mark.parametrize("largest", [448.0, 3e38])
def test_fp8_reference_matches_nearest_code(largest: float) -> None:
    values = bfloat16_values(largest)
    np.testing.assert_array_equal(fp8_round_trip(values), fp8_oracle(values))
    shuffled = np.random.default_rng(0).permutation(values)
    np.testing.assert_array_equal(fp8_round_trip(shuffled), fp8_oracle(shuffled))


def test_fp4_reference_matches_nearest_code() -> None:
    values = bfloat16_values(3e38)
    np.testing.assert_array_equal(fp4_round_trip(values), fp4_oracle(values))


@pytest.mark.oracle
def test_fp8_codes_match_torch() -> None:
    import torch

    values = np.sort(bfloat16_values(448.0)).astype(np.float32)
    values = np.concatenate([values, (E4M3[1:] + E4M3[:-1]).astype(np.float32) / 2])
    codes = torch.from_numpy(values).to(torch.float8_e4m3fn).float().numpy()
    # With 448 in every block the scale is 1.
    blocks = np.full((-(-len(values) // 63), 64), 448.0)
    blocks[:, :63].flat[: len(values)] = values
    rounded = fp8_round_trip(blocks)[:, :63].ravel()[: len(values)]
    np.testing.assert_array_equal(rounded, codes)
    np.testing.assert_array_equal(np.signbit(rounded), np.signbit(codes))


def test_fp8_on_numbers_worked_by_hand() -> None:
    x = np.zeros(64)
    x[:8] = [448, 17, 19, -21, 2**-10, 3 * 2**-10, -(2**-11), 0.0]
    # 17, 19 and 21 lie between multiples of 2; 2^-10 and 3 * 2^-10 between multiples of 2^-9.
    assert fp8_round_trip(x)[:8].tolist() == [448, 16, 20, -20, 0, 2 * 2**-9, 0, 0]
    # A block below 1e-4 has the scale 2^ceil(log2(1e-4 / 448)) = 2^-22.
    small = np.zeros(64)
    small[:2] = [1e-5, 2.0**-32]
    assert fp8_round_trip(small)[:2].tolist() == [40 * 2.0**-22, 0]  # 1e-5 * 2^22 = 41.94


def test_fp4_on_numbers_worked_by_hand() -> None:
    x = np.zeros(32)
    x[:11] = [6, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -5.1, -0.25]
    assert fp4_round_trip(x)[:11].tolist() == [6, 0, 0.5, 1, 1, 2, 2, 4, 4, -6, 0]


def test_bfloat16_on_numbers_worked_by_hand() -> None:
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20, 1e-45])
    assert to_bfloat16(x).tolist() == [1, 1 + 2**-6, -1 - 2**-7, 0]
    assert np.isnan(to_bfloat16(np.array([np.nan]))).all()


@pytest.mark.parametrize("n", [1, 2, 32, 128])
def test_hadamard_reference_is_the_sylvester_matrix(n: int) -> None:
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    x = np.random.default_rng(0).standard_normal((3, n))
    np.testing.assert_allclose(hadamard(x), x @ matrix / np.sqrt(n), atol=1e-12)
    np.testing.assert_allclose(hadamard(hadamard(x)), x, atol=1e-12)


# -- the kernels against the reference ---------------------------------------------------------


@pytest.mark.parametrize("largest", [448.0, 1e-3, 1e38])
def test_fp8_kernel_matches_reference_on_every_bfloat16(largest: float, executor: str) -> None:
    values = bfloat16_values(largest)
    for order in (values, np.random.default_rng(0).permutation(values)):
        np.testing.assert_array_equal(kernel_fp8(order), fp8_round_trip(order))


@pytest.mark.parametrize("exponent", [-22, -3, 0, 40])
def test_fp8_scale_at_its_boundary(exponent: int, executor: str) -> None:
    unit = 2.0**exponent
    x = np.zeros(64)
    x[:2] = [448 * unit, 2.0**-9 * unit]  # the smallest code is kept only at scale `unit`
    assert kernel_fp8(x)[:2].tolist() == x[:2].tolist()
    x[0] = np.nextafter(np.float32(448 * unit), np.float32(np.inf))
    assert kernel_fp8(x)[:2].tolist() == [448 * unit, 0]
    np.testing.assert_array_equal(kernel_fp8(x), fp8_round_trip(x))


def test_fp8_kernel_rounds_ties_between_all_neighbours_to_even(executor: str) -> None:
    middles = (E4M3[1:] + E4M3[:-1]) / 2
    x = np.full((4, 64), 448.0)
    x[:, :63].flat[: len(middles)] = middles
    x[:, :63].flat[126 : 126 + len(middles)] = -middles
    np.testing.assert_array_equal(kernel_fp8(x.ravel()), fp8_oracle(x).ravel())


def test_fp8_kernel_of_nothing_and_of_almost_nothing(executor: str) -> None:
    assert not kernel_fp8(np.zeros(128)).any()
    tiny = np.full(64, -1e-45)  # the smallest float32
    assert not kernel_fp8(tiny).any()
    assert np.signbit(kernel_fp8(tiny)).all()
    np.testing.assert_array_equal(np.signbit(fp8_round_trip(tiny)), True)


def test_fp4_kernel_matches_reference_around_every_tie(executor: str) -> None:
    # Multiples of 1/64 up to 6, 31 a block; the 6 makes the scale 1.
    grid = np.concatenate([np.arange(-384, 385), np.zeros(6)]) / 64
    blocks = np.full((25, 32), 6.0)
    blocks[:, :31] = grid.reshape(25, 31)
    x = np.concatenate([blocks.ravel(), np.full(1024 - blocks.size, 6.0)])
    for scale in (1.0, 2.0**-20, 2.0**30):
        rounded = kernel_fp4(scale * x)
        np.testing.assert_array_equal(rounded, fp4_round_trip(scale * x))
        np.testing.assert_array_equal(rounded, fp4_oracle(scale * x))


@pytest.mark.parametrize("exponent", [-60, 0, 40])
def test_fp4_scale_at_its_boundary(exponent: int, executor: str) -> None:
    unit = 2.0**exponent
    x = np.zeros(64)
    x[:2] = [6 * unit, 0.3125 * unit]  # the second is a code above 0 only at scale `unit`
    assert kernel_fp4(x)[:2].tolist() == [6 * unit, 0.5 * unit]
    x[0] = np.nextafter(np.float32(6 * unit), np.float32(np.inf))
    assert kernel_fp4(x)[:2].tolist() == [6 * unit, 0]
    np.testing.assert_array_equal(kernel_fp4(x), fp4_round_trip(x))


def test_fp4_kernel_of_nothing_and_of_almost_nothing(executor: str) -> None:
    assert not kernel_fp4(np.zeros(64)).any()
    x = np.zeros(64)
    x[3] = 8 * 2.0**-126  # kept by the scale 2^-125, above the smallest one
    assert kernel_fp4(x)[3] == 8 * 2.0**-126


def test_hadamard_kernel_keeps_the_sign_of_zero(executor: str) -> None:
    nothing = np.full(64, -0.0)  # the sum of all is -0, differences are 0
    np.testing.assert_array_equal(
        np.signbit(kernel_hadamard_fp4(nothing)), np.signbit(fp4_round_trip(hadamard(nothing)))
    )


@pytest.mark.parametrize("dim", [32, 64, 128, 256, 512, 2048])
def test_hadamard_kernel_matches_reference(dim: int, executor: str) -> None:
    x = np.random.default_rng(dim).standard_normal(dim).astype(np.float32)
    transformed = hadamard(x)
    # log2(n) sums and a product, each relative to the sum of magnitudes.
    off = (np.log2(dim) + 2) * EPS * np.abs(x).sum()
    stored = kernel_hadamard_fp4(x)
    scales = np.repeat([block_scale(b, 0, 6) for b in transformed.reshape(-1, 32)], 32)
    lower = nearest((transformed - off) / scales, E2M1) * scales
    upper = nearest((transformed + off) / scales, E2M1) * scales
    assert np.all((lower <= stored) & (stored <= upper))
