"""The functions of MSL on the simulator, against NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlx_dsv4.reference.rounding import to_bfloat16
from mslsim import Library

pytestmark = pytest.mark.simulated

Array = npt.NDArray[Any]

HERE = Path(__file__).parent
SHADERS = HERE.parents[1] / "metal"
ONE_THREAD = {"threadgroups": 1, "threadgroup": 1}
ONE_SIMDGROUP = {"threadgroups": 1, "threadgroup": 32}
POSITION = np.dtype(
    [
        *((name, "2u4") for name in ("in_grid", "in_threadgroup", "group", "size")),
        *((name, "2u4") for name in ("nominal_size", "grid", "threadgroups")),
        *((name, "u4") for name in ("index", "lane", "simdgroup", "simdgroups")),
    ]
)


@pytest.fixture(scope="module", params=["fast", "check"])
def library(request: pytest.FixtureRequest) -> Library:
    return Library(HERE / "semantics.metal", include=[SHADERS], mode=request.param)


def test_sizes_and_function_constants(library: Library) -> None:
    out = np.zeros(11, np.int32)
    library.kernel("facts", {3: 20}).dispatch([out], **ONE_THREAD)
    assert out.tolist() == [20, 41, 0, 16, 12, 8, 16, 4, 2, 4, 8]


def test_positions_in_a_grid_with_ragged_edges(library: Library) -> None:
    width, height, columns, rows = 10, 7, 4, 3
    out = np.zeros((height, width), POSITION)
    kernel = library.kernel("positions")
    kernel.dispatch([out], threads=(width, height), threadgroup=(columns, rows))
    for y in range(height):
        for x in range(width):
            size = (
                min(columns, width - x // columns * columns),
                min(rows, height - y // rows * rows),
            )
            index = y % rows * size[0] + x % columns
            p = out[y, x]
            assert tuple(p["in_grid"]) == (x, y)
            assert tuple(p["in_threadgroup"]) == (x % columns, y % rows)
            assert tuple(p["group"]) == (x // columns, y // rows)
            assert tuple(p["size"]) == size
            assert tuple(p["nominal_size"]) == (columns, rows)
            assert tuple(p["grid"]) == (width, height)
            assert tuple(p["threadgroups"]) == (3, 3)
            assert (p["index"], p["lane"], p["simdgroup"]) == (index, index % 32, index // 32)
            assert p["simdgroups"] == 1


def test_vectors(library: Library) -> None:
    out = np.zeros(21, np.float32)
    library.kernel("vectors").dispatch([out], **ONE_THREAD)
    assert out.tolist() == [
        *(4, 20, 30, 1),  # two components assigned, two multiplied
        *(3, 20, 1, 2),  # a vector of a scalar and a vector; its conversion
        *(-3, 14, 1, -4, 1),  # division to zero, dot, all, select, as_type
        *(0, 3, 3, 5, 2, 1.5, 0.75),
        np.float32(0.1) + np.float32(0.2) == np.float32(0.3),
    ]


@pytest.mark.parametrize(
    ("name", "dtype"), [("int", np.int32), ("uint", np.uint32), ("ushort", np.uint16)]
)
def test_integer_functions(library: Library, name: str, dtype: type) -> None:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(info.min, info.max, 64).astype(dtype) for _ in range(2))
    x[:4] = 0, 1, info.max, info.min
    y[:4] = 0, 33, 1, 7
    out = np.zeros((12, 64), dtype)
    library.kernel(f"integers_{name}").dispatch([x, y, out], threads=64, threadgroup=32)
    expected = [integer_results(int(a), int(b), info) for a, b in zip(x, y, strict=True)]
    modulus = 2**info.bits
    for k, values in enumerate(zip(*expected, strict=True)):
        assert [int(v) % modulus for v in out[k]] == [v % modulus for v in values], k


def integer_results(a: int, b: int, info: np.iinfo[Any]) -> list[int]:
    """What the kernel writes for two integers, in its order; congruent in the type."""
    bits = info.bits
    unsigned, turn = a % 2**bits, b % bits
    field = unsigned >> 3 & 31
    return [
        unsigned.bit_count(),
        bits - unsigned.bit_length(),
        (unsigned & -unsigned).bit_length() - 1 if a else bits,
        int(f"{unsigned:0{bits}b}"[::-1], 2),
        unsigned << turn | unsigned >> (bits - turn),
        field - 32 if info.min < 0 and field >= 16 else field,
        unsigned & ~(31 << 3) | (b & 31) << 3,
        abs(a - b),
        a * b >> bits,
        min(a, b),
        a >> 3,
        int(a / b) if b else a,
    ]


def test_conversions_round_to_nearest_even(library: Library) -> None:
    rng = np.random.default_rng(1)
    scales = np.exp2(rng.integers(-20, 12, 4096))
    x = (rng.standard_normal(4096) * scales).astype(np.float32)
    x[:8] = 2049, 1.00390625, 1.01171875, 2.0**-25, 3 * 2.0**-26, 65520, 18.5, -0.0
    halves, bfloats = np.zeros(4096, np.float16), np.zeros(4096, np.uint16)
    e4m3, integers = np.zeros(4096, np.float32), np.zeros(4096, np.int32)
    library.kernel("conversions").dispatch(
        [x, halves, bfloats, e4m3, integers], threads=4096, threadgroup=256
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(halves, x.astype(np.float16))
    widened = (bfloats.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(widened, to_bfloat16(x))
    np.testing.assert_array_equal(e4m3, nearest_e4m3(np.clip(x, -448, 448)))
    np.testing.assert_array_equal(integers, np.rint(x).astype(np.int32))


def nearest_e4m3(x: Array) -> Array:
    """By search among all values; the even one of two that are as near."""
    codes = np.arange(127)
    exponents, fractions = codes >> 3, codes & 7
    values = np.where(
        exponents == 0, fractions * 2.0**-9, (8 + fractions) * 2.0 ** (exponents - 10.0)
    )
    distances = np.abs(np.abs(x).astype(np.float64)[:, None] - values)
    tied = distances == distances.min(axis=1, keepdims=True)
    even_first = np.where(tied, codes % 2, 2)
    return np.copysign(values[even_first.argmin(axis=1)], x).astype(np.float32)


def test_half_and_bfloat_arithmetic_rounds_every_operation(library: Library) -> None:
    x = np.array([1.2345, 0.9876, 1.1e-3, 2.5], np.float16)
    out, wide = np.zeros(6, np.float16), np.zeros(5, np.float32)
    library.kernel("narrow").dispatch([x, out, wide], **ONE_THREAD)
    exact = x.astype(np.float64)
    half = np.float16
    assert out.tolist() == [
        x[0] * x[1] + x[2],
        half(exact[0] * exact[1] + exact[2]),
        x[0] + x[1] + x[2],
        half(exact[0] / exact[1]),
        half(np.exp(exact[3])),
        half(1) / half(3),
    ]
    assert wide.tolist() == [1, 2, 3.140625, 3, np.float32(x[0]) + np.float32(x[1])]


@pytest.mark.parametrize(
    ("name", "dtype"), [("float", np.float32), ("int", np.int32), ("half", np.float16)]
)
def test_lanes(library: Library, name: str, dtype: type) -> None:
    lane = np.arange(32)
    x = np.where(lane % 8 == 3, 3, np.where(lane % 3 == 0, -1, 1)).astype(dtype)
    out = np.zeros((22, 32), dtype)
    library.kernel(f"lanes_{name}").dispatch([x, out], **ONE_SIMDGROUP)
    sums, quads = np.cumsum(x.astype(np.int64)), x.reshape(8, 4)
    expected = [
        np.full(32, sums[-1]),
        np.full(32, np.prod(x.astype(np.float64))),
        np.full(32, x.min()),
        np.full(32, x.max()),
        sums,
        sums - x,
        x[lane * 7 % 32],
        np.full(32, x[5]),
        x[lane ^ 3],
        np.where(lane + 2 < 32, x[(lane + 2) % 32], x),
        np.where(lane >= 2, x[lane - 2], x),
        x[(lane + 3) % 32],
        x[(lane - 3) % 32],
        np.repeat(quads.sum(axis=1), 4),
        x[lane ^ 1],
        np.repeat(quads[:, 2], 4),
        np.full(32, x[0]),
        np.ones(32),
        np.zeros(32),
        np.full(32, 0xAA),
        lane == 0,
        np.full(32, sums[-1]),
    ]
    for k, values in enumerate(expected):
        np.testing.assert_array_equal(out[k].astype(np.float64), values, err_msg=str(k))


def test_simdgroup_matrices(library: Library) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((8, 16)).astype(np.float32)
    h = rng.standard_normal((8, 8)).astype(np.float16)
    out = np.zeros((4, 8, 8), np.float32)
    library.kernel("matrices").dispatch([x, h, out], **ONE_SIMDGROUP)
    a, b = x[:, :8].astype(np.float64), x[:, 8:].astype(np.float64)
    wide = h.astype(np.float64)
    np.testing.assert_allclose(out[0], a @ b + np.eye(8), atol=1e-5)
    np.testing.assert_allclose(out[1], (a @ b.T).T, atol=1e-5)
    np.testing.assert_allclose(out[3], wide @ wide + np.eye(8), atol=1e-5)
    for lane in range(32):
        row = (lane // 4 & 4) + lane // 2 % 4
        column = (lane // 4 & 2) * 2 + lane % 2 * 2
        assert out[2, row, column : column + 2].tolist() == [lane, 3]


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_atomics(library: Library, order: str) -> None:
    n = 640
    integer, real = np.zeros(1, np.int32), np.zeros(1, np.float32)
    others = np.zeros(4, np.uint32)
    kernel = library.kernel("atomics")
    kernel.dispatch([integer, real, others], threads=n, threadgroup=64, order=order)
    assert integer[0] == n * (n - 1) // 2
    assert real[0] == n / 2
    assert others.tolist() == [max(i * 7 % 101 for i in range(n)), 0xFFFFFFFF, 2 * n, n]


def test_simdgroups_may_part_and_lanes_may_leave(library: Library) -> None:
    out = np.zeros((2, 32), np.int32)
    library.kernel("branches").dispatch([out], threadgroups=1, threadgroup=64)
    assert out[0].tolist() == [1 + 20] * 20 + [1] * 12
    assert out[1].tolist() == [32 + 20] * 20 + [32] * 12
