"""Block formats against the gguf package, and against blocks worked by hand."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

import gguf
from mlx_dsv4.errors import UnsupportedModelError
from mlx_dsv4.gguf import PACKED, block_shape, dequantize
from mlx_dsv4.gguf.blocks import DECODABLE, FORMATS, n_bytes_of


@pytest.mark.parametrize(
    ("format", "shape"),
    [
        *[("f32", (1, 4)), ("f16", (1, 2)), ("bf16", (1, 2)), ("i32", (1, 4))],
        *[("q8_0", (32, 34)), ("mxfp4", (32, 17)), ("q4_0", (32, 18))],
        *[("q2_k", (256, 84)), ("q4_k", (256, 144)), ("q6_k", (256, 210))],
        *[("iq2_xxs", (256, 66)), ("iq1_m", (256, 56)), ("iq4_nl", (32, 18))],
    ],
)
def test_block_sizes_are_those_of_ggml(format, shape):
    assert block_shape(format) == shape


@pytest.mark.parametrize("format", ["nvfp4", "q1_0", "type 42", "", "F32"])
def test_ambiguous_and_unknown_formats_are_refused(format):
    with pytest.raises(UnsupportedModelError, match=r"block format must be one of .*; got"):
        block_shape(format)
    with pytest.raises(UnsupportedModelError, match=r"block format must be one of .*; got"):
        dequantize(np.zeros(4, np.uint8), format, (1,))


@pytest.mark.parametrize("type_id", [t for t in GGML_QUANT_SIZES if t < 40], ids=lambda t: t.name)
def test_values_equal_the_gguf_package(type_id):
    format = FORMATS[int(type_id)]
    elements, n_bytes = block_shape(format)
    rng = np.random.default_rng(int(type_id))
    raw = rng.integers(0, 256, (2, 3, 2 * n_bytes), dtype=np.uint8)
    shape = (2, 3, 2 * elements)
    if format not in DECODABLE:
        with pytest.raises(UnsupportedModelError):
            dequantize(raw, format, shape)
        with pytest.raises(NotImplementedError):
            gguf.dequantize(raw, type_id)
        return
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, type_id)
    ours = dequantize(raw.reshape(-1), format, shape)
    assert ours.dtype == np.float32
    assert ours.flags.owndata or ours.base.flags.owndata
    assert np.array_equal(ours, expected.reshape(shape), equal_nan=True)


def test_packed_formats_can_be_decoded():
    assert set(PACKED) <= set(DECODABLE)


def test_a_q8_0_block_worked_by_hand():
    raw = np.frombuffer(np.float16(0.5).tobytes() + bytes([1, 255, 128] + [0] * 29), np.uint8)
    assert dequantize(raw, "q8_0", (32,))[:4].tolist() == [0.5, -0.5, -64.0, 0.0]


def test_an_mxfp4_block_worked_by_hand():
    """Scale 2^(129-127) = 4; low nibbles are elements 0 to 15, high ones 16 to 31."""
    raw = np.array([129, 0x71, 0xF2] + [0] * 14, np.uint8)
    values = dequantize(raw, "mxfp4", (32,))
    assert values[[0, 1, 2, 16, 17]].tolist() == [2.0, 4.0, 0.0, 24.0, -24.0]


def test_a_bf16_row_is_not_changed_by_its_place_in_the_file():
    values = np.array([1.5, -2.0, 0.0, 3.0], np.float32)
    raw = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    shifted = np.concatenate([np.zeros(1, np.uint8), raw])[1:]
    assert dequantize(shifted, "bf16", (2, 2)).tolist() == [[1.5, -2.0], [0.0, 3.0]]


def test_sizes_follow_from_shapes():
    assert n_bytes_of("q8_0", (3, 64)) == 3 * 2 * 34
    assert n_bytes_of("f32", (1,)) == 4
    with pytest.raises(ValueError, match="row of mxfp4 must be a multiple of 32 elements; got 48"):
        n_bytes_of("mxfp4", (2, 48))


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match=r"q8_0 of shape \[2, 32\] must be 68 bytes; got 34"):
        dequantize(np.zeros(34, np.uint8), "q8_0", (2, 32))
