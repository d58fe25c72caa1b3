"""Decoded rows of packed matrices against their reference."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from blocks import ELEMENTS, FORMATS
from mlx_dsv4 import ops, reference
from mlx_dsv4.gguf.random_rows import random_rows


@pytest.mark.parametrize("format", FORMATS)
def test_embed_decodes_every_code_exactly(format: str, executor: str) -> None:
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
    if executor == "metal" and format == "mxfp4":
        numbers &= np.abs(expected) >= 2.0**-126  # a GPU's products flush smaller ones to zero
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(out[numbers].view(np.int32), expected[numbers].view(np.int32))


def test_embed_on_a_block_worked_by_hand(executor: str) -> None:
    # Byte i holds value i in its low half and value i + 16 in its high half; 0x80 is 2^1.
    block = mx.array([[0x80] + 16 * [0xA1]], dtype=mx.uint8)
    out = ops.embed(mx.array([0], dtype=mx.int32), block, format="mxfp4")
    assert out.tolist() == [16 * [1.0] + 16 * [-2.0]]


@pytest.mark.parametrize("format", FORMATS)
def test_rows_may_begin_at_any_byte(format: str, isa: str) -> None:
    rows = random_rows((5, 64), format)
    behind_a_byte = mx.array(np.concatenate([np.zeros(1, np.uint8), rows.reshape(-1)]))
    weight = behind_a_byte[1:].reshape(rows.shape)
    tokens = np.arange(5, dtype=np.int32)
    out = np.array(ops.embed(mx.array(tokens), weight, format=format))
    np.testing.assert_array_equal(out, reference.embed(tokens, rows, format=format))


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
def test_tokens_outside_the_matrix_are_named(token: int, executor: str) -> None:
    weight = mx.zeros((6, 68), mx.uint8)
    message = rf"\[embed\] tokens must be in 0\.\.5; got {token} at index 1"
    with pytest.raises(ValueError, match=message):
        ops.embed(mx.array([0, token]), weight, format="q8_0")
    unknown = mx.array([0, token - 1]) + mx.array([0, 1])  # not computed yet
    rows = np.array(ops.embed(unknown, weight, format="q8_0"))
    assert (rows[0] == 0).all()
    assert np.isnan(rows[1]).all()


def test_no_tokens_give_no_rows(executor: str) -> None:
    weight = mx.array(random_rows((9, 32), "q8_0"))
    rows = ops.embed(mx.zeros(0, mx.int32), weight, format="q8_0")
    mx.eval(rows)
    assert rows.shape == (0, 32)


# Rows end inside a block, at the end of a threadgroup and behind it.
@pytest.mark.parametrize("k", [1, 17, 35, 2048, 2051])
def test_rows_of_any_length(k: int, executor: str) -> None:
    weight = random_rows((3, k), "f16")
    tokens = np.array([2, 0, 2], np.int32)
    out = ops.embed(mx.array(tokens), mx.array(weight), format="f16")
    expected = reference.embed(tokens, weight, format="f16")
    np.testing.assert_array_equal(np.array(out), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_weights_are_read_where_a_file_is_mapped(
    format: str, tmp_path: Path, executor: str
) -> None:
    k = 64 if format in ELEMENTS else 61
    weight = random_rows((9, k), format)
    offset = 8192 - weight.nbytes  # the matrix ends where the mapping ends
    path = tmp_path / "weights"
    path.write_bytes(bytes(offset) + weight.tobytes())
    mapped = ops.MappedFile(path).view(offset, weight.shape)
    out = ops.embed(mx.array([8, 0], dtype=mx.int32), mapped, format=format)
    expected = reference.embed(np.array([8, 0]), weight, format=format)
    np.testing.assert_array_equal(np.array(out), expected)


def test_weights_that_would_need_a_copy_are_refused(executor: str) -> None:
    weight = mx.zeros((12, 68), mx.uint8)[::2]
    with pytest.raises(ValueError, match="weight must be row-contiguous, it is never copied"):
        mx.eval(ops.embed(mx.zeros(1, mx.int32), weight, format="q8_0"))
