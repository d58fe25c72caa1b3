"""Weights of a checkpoint as the bytes of a GGUF file, some rows at a time.

    FP8    e4m3[code] * 2^(s - 127), one s for 128 x 128 values    ->  q8_0 or bf16
    FP4    e2m1[code] * 2^(s - 127), one s for 32 values of a row  ->  mxfp4, the same bits
    BF16, F32                                                      ->  the same, or f32

ggml writes the e2m1 of mxfp4 doubled and the power of two halved; their product is the same.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.checkpoint.shards import StoredTensor
from mlx_dsv4.errors import TensorError
from mlx_dsv4.gguf.blocks import quantize

FP8_BLOCK = 128
FP4_BLOCK = 32
# What is decoded at once: each float32 array on the way takes four times as many bytes.
CHUNK_ELEMENTS = 1 << 20

_NAN_SCALE = 255


def _e4m3() -> NDArray[np.float32]:
    """The value of each code: a sign, four bits of exponent, three of mantissa, no infinity."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    size[code & 127 == 127] = np.nan
    values: NDArray[np.float32] = np.where(code < 128, size, -size).astype(np.float32)
    return values


E4M3 = _e4m3()
E8M0 = np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.float32(np.nan))


def encode(
    weight: StoredTensor, scale: StoredTensor | None, format: str
) -> Iterator[NDArray[np.generic]]:
    """The bytes of one tensor, or of one expert of a bank, in the order of the file.

    Args:
        weight: ``F8_E4M3``, ``I8`` (two FP4 codes a byte, the even element in the low bits),
            ``BF16`` or ``F32``.
        scale: Of FP8 ``[ceil(rows / 128), ceil(columns / 128)]``, of FP4 ``[rows, columns / 32]``;
            None for the others.
        format: ``q8_0`` or ``bf16`` of FP8, ``mxfp4`` of FP4, ``bf16`` of BF16, ``f32`` of both
            others.

    Yields:
        ``[some rows, ...]``, of any dtype.

    Raises:
        TensorError: a value is not finite, or ``format`` cannot hold it.
    """
    codes = weight.codes()
    scales = None if scale is None else _scales(scale)
    n_rows = max(1, CHUNK_ELEMENTS // weight.shape[-1])
    for first in range(0, len(codes), n_rows):
        rows = codes[first : first + n_rows]
        if weight.dtype == "I8":
            assert scales is not None
            yield interleave_halves(rows, scales[first : first + n_rows])
        elif weight.dtype == format.upper() == "BF16":
            bits = rows.view(np.uint16)
            _require_finite(weight, first, bits & 0x7F80 != 0x7F80)
            yield rows
        else:
            values = _values(weight, rows, scales, first)
            _require_finite(weight, first, np.isfinite(values))
            yield _pack(weight, values, format)


def interleave_halves(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """FP4 codes of neighbours in one byte, as mxfp4: element i with element i + 16 of its block.

    Args:
        codes: ``[rows, columns / 2]`` uint8, even elements in the low bits.
        scales: ``[rows, columns / 32]`` uint8.

    Returns:
        ``[rows, columns / 32, 17]`` uint8: each scale before its codes.
    """
    halves = codes.reshape(*scales.shape, 2, FP4_BLOCK // 4)
    lower, upper = halves[..., 0, :], halves[..., 1, :]
    blocks = np.empty((*scales.shape, 1 + FP4_BLOCK // 2), np.uint8)
    blocks[..., 0] = scales
    blocks[..., 1::2] = lower & 15 | upper << 4
    blocks[..., 2::2] = lower >> 4 | upper & 0xF0
    return blocks


def decode_fp8(
    codes: NDArray[np.uint8], scales: NDArray[np.uint8], first: int = 0
) -> NDArray[np.float32]:
    """Values of rows of an FP8 matrix; exact, or infinite where float32 ends.

    Args:
        codes: ``[rows, columns]`` uint8.
        scales: Those of the whole matrix, uint8.
        first: Number of the first row in the matrix.
    """
    of_rows = np.arange(first, first + len(codes)) // FP8_BLOCK
    of_columns = np.arange(codes.shape[1]) // FP8_BLOCK
    values: NDArray[np.float32] = E4M3[codes]
    with np.errstate(over="ignore"):
        values *= E8M0[scales[of_rows][:, of_columns]]
    return values


def _scales(scale: StoredTensor) -> NDArray[np.uint8]:
    codes = scale.codes()
    if (codes == _NAN_SCALE).any():
        block = np.argwhere(codes == _NAN_SCALE)[0].tolist()
        raise TensorError(
            f"{scale} must hold numbers; got NaN, 255, for block {block}", wrong=(scale.name,)
        )
    return codes


def _values(
    weight: StoredTensor, rows: NDArray[np.uint8], scales: NDArray[np.uint8] | None, first: int
) -> NDArray[np.float32]:
    if scales is not None:
        return decode_fp8(rows, scales, first)
    if weight.dtype == "BF16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return rows.view(np.float32)


def _require_finite(weight: StoredTensor, first: int, finite: NDArray[np.bool_]) -> None:
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise TensorError(
            f"{weight} must hold finite values; got another one in row {first + row}, "
            f"column {column}",
            wrong=(weight.name,),
        )


def _pack(weight: StoredTensor, values: NDArray[np.float32], format: str) -> NDArray[np.generic]:
    if format == "f32":
        return values
    if format == "bf16":
        bits = values.view(np.uint32)
        fits = not (bits & 0xFFFF).any()
        packed: NDArray[np.generic] = (bits >> 16).astype(np.uint16)
    else:
        # A block of tiny values gets a scale of zero, and the codes are of no account.
        with np.errstate(all="ignore"):
            packed = quantize(values, "q8_0")
        fits = bool(np.isfinite(packed.reshape(-1, 34)[:, :2].copy().view(np.float16)).all())
    if not fits:
        raise TensorError(
            f"{weight} must fit {format}; got values that do not: choose another dense format",
            wrong=(weight.name,),
        )
    return packed
