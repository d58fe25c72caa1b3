"""Products with matrices in the K, IQ and 4- and 5-bit formats, and their decoded rows."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

import gguf
import make_codebooks
from arrays import same_bits, to_numpy
from blocks import ELEMENTS, product_bound
from mlx_dsv4 import ops, reference
from mlx_dsv4.gguf import PACKED, block_shape
from mlx_dsv4.gguf.blocks import DECODABLE
from mlx_dsv4.gguf.random_rows import CODED_FORMATS, random_rows

ROOT = Path(__file__).parents[2]


def make_x(n_tokens: int, k: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((n_tokens, k)).astype(np.float32)


def every_code(format: str) -> np.ndarray:
    """Rows whose blocks have every byte at every place, and scales of every kind."""
    n_bytes = GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format.upper()]][1]
    places = np.arange(256)[:, None] * 167 + np.arange(n_bytes) * 89
    two = np.stack([places, np.random.default_rng(3).integers(0, 256, places.shape)], axis=1)
    return (two % 256).astype(np.uint8).reshape(256, -1)


@pytest.mark.parametrize("format", CODED_FORMATS)
def test_blocks_decode_as_the_gguf_package_does(format: str, executor: str) -> None:
    rows = every_code(format)
    tokens = np.arange(256, dtype=np.int32)
    out = np.array(ops.embed(mx.array(tokens), mx.array(rows), format=format))
    with np.errstate(invalid="ignore", over="ignore"):
        expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[format.upper()])
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(out), ~numbers)
    np.testing.assert_array_equal(
        out[numbers].view(np.int32), expected.astype(np.float32)[numbers].view(np.int32)
    )


# Rows end inside a panel and a tile; tokens are few, as many as a launch and more, and many.
@pytest.mark.parametrize("format", CODED_FORMATS)
@pytest.mark.parametrize(("n_tokens", "n_rows", "k"), [(1, 37, 512), (5, 9, 768), (20, 34, 256)])
def test_matches_reference(n_tokens: int, n_rows: int, k: int, format: str, executor: str) -> None:
    x, weight = make_x(n_tokens, k), random_rows((n_rows, k), format)
    out = ops.matmul(mx.array(x), mx.array(weight), format=format)
    error = np.abs(to_numpy(out) - reference.matmul(x, weight, format=format))
    assert (error <= product_bound(x, reference.dequantize(weight, format))).all()


@pytest.mark.parametrize("format", CODED_FORMATS)
def test_a_token_does_not_depend_on_its_batch(format: str, executor: str) -> None:
    k = 768  # a block and a half of the segments that are summed alone
    x, weight = mx.array(make_x(20, k)), mx.array(random_rows((11, k), format))
    alone = [ops.matmul(x[t : t + 1], weight, format=format) for t in range(20)]
    for n in (2, 3, 5, 9, 20):
        together = ops.matmul(x[:n], weight, format=format)
        assert same_bits(together, mx.concatenate(alone[:n]))


@pytest.mark.parametrize("format", ["q4_0", "q2_k"])
def test_rows_of_part_of_a_block_are_refused(format: str) -> None:
    elements = ELEMENTS[format]
    weight = mx.array(random_rows((6, elements), format))
    message = f"rows of weight must hold a positive multiple of {elements} values; got {3}"
    with pytest.raises(ValueError, match=message):
        ops.matmul(mx.zeros((1, 3)), weight, format=format)


def test_the_committed_codebooks_are_those_of_the_gguf_package() -> None:
    committed = (ROOT / "metal/codebooks.h").read_text()
    assert committed == make_codebooks.header(), "run python metal/make_codebooks.py"


def test_every_packed_format_has_kernels() -> None:
    for format in PACKED:
        elements, n_bytes = block_shape(format)
        product = ops.matmul(
            mx.zeros((1, elements)), mx.zeros((1, n_bytes), mx.uint8), format=format
        )
        assert np.array(product).tolist() == [[0.0]]
    others = set(DECODABLE) - set(PACKED)
    assert others == {"tq1_0", "tq2_0"}
    for format in others:
        with pytest.raises(ValueError, match=f"format must be one of f32, .*; got {format}"):
            ops.matmul(mx.zeros((1, 256)), mx.zeros((1, 54), mx.uint8), format=format)
