"""Block formats of GGUF tensors: their sizes, and their values as float32."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

import gguf
from mlx_dsv4.errors import UnsupportedModelError

# Forks of llama.cpp give type ids from here on different meanings.
FIRST_AMBIGUOUS_TYPE_ID = 40

# Type id -> format name, for every id whose meaning is the same everywhere.
FORMATS: dict[int, str] = {
    int(kind): kind.name.lower() for kind in GGML_QUANT_SIZES if int(kind) < FIRST_AMBIGUOUS_TYPE_ID
}
_KINDS = {name: gguf.GGMLQuantizationType(type_id) for type_id, name in FORMATS.items()}

# Formats that matrix products are computed on, as they lie in the file.
PACKED = (
    *("f32", "f16", "bf16", "q8_0", "mxfp4", "q4_0", "q4_1", "q5_0", "q5_1"),
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s"),
    *("iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
)
# Those that the gguf package can write, and test models are made of.
WRITABLE = ("f32", "f16", "bf16", "q8_0", "mxfp4")

# Stored numbers that are no weights.
_NOT_WEIGHTS = ("i8", "i16", "i32", "i64", "f64", "q8_1", "q8_k")
DECODABLE = tuple(name for name in FORMATS.values() if name not in _NOT_WEIGHTS)


def block_shape(format: str) -> tuple[int, int]:
    """Elements and bytes of one block of ``format``.

    Raises:
        UnsupportedModelError: the format is none whose layout is known.
    """
    if format not in _KINDS:
        raise UnsupportedModelError(
            f"block format must be one of {', '.join(sorted(_KINDS))}; got {format!r}"
        )
    elements, n_bytes = GGML_QUANT_SIZES[_KINDS[format]]
    return elements, n_bytes


def n_bytes_of(format: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of ``shape`` (outer dimension first) stored in ``format``.

    Raises:
        UnsupportedModelError: the format is none whose layout is known.
        ValueError: a row is not a whole number of blocks.
    """
    elements, n_bytes = block_shape(format)
    if shape[-1] % elements:
        raise ValueError(
            f"a row of {format} must be a multiple of {elements} elements; got {shape[-1]}"
        )
    total = n_bytes
    for dimension in (*shape[:-1], shape[-1] // elements):
        total *= dimension
    return total


def dequantize(raw: NDArray[np.uint8], format: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """The values of a tensor as float32.

    Args:
        raw: uint8, any shape. The tensor's bytes as they lie in the file.
        format: One of :data:`DECODABLE`.
        shape: Outer dimension first.

    Returns:
        ``shape`` float32, owning its memory.

    Raises:
        UnsupportedModelError: ``format`` has no decoder.
        ValueError: ``raw`` has another size than ``shape`` needs.

    Source: ``gguf.quants`` of the ``gguf`` package.
    """
    if format not in DECODABLE:
        raise UnsupportedModelError(
            f"block format must be one of {', '.join(sorted(DECODABLE))}; got {format!r}"
        )
    expected = n_bytes_of(format, shape)
    if raw.nbytes != expected:
        raise ValueError(
            f"{format} of shape {list(shape)} must be {expected} bytes; got {raw.nbytes}"
        )
    rows = np.ascontiguousarray(raw).reshape(-1, expected // max(1, int(np.prod(shape[:-1]))))
    # Scales that are not finite are data, not a fault of the decoder.
    with np.errstate(all="ignore"):
        values = gguf.dequantize(rows, _KINDS[format])
    return np.array(values, dtype=np.float32).reshape(tuple(shape))


def quantize(array: NDArray[Any], format: str) -> NDArray[np.uint8]:
    """Store an array in a block format.

    Args:
        array: ``[..., K]``, taken as float32, or as int32 for ``i32``; K is a whole number of
            blocks.
        format: One of :data:`WRITABLE`, or ``i32``.

    Returns:
        ``[..., row_bytes]`` uint8.

    Raises:
        UnsupportedModelError: another format.

    Source: ``gguf.quants`` of the ``gguf`` package.
    """
    if format == "i32":
        return np.ascontiguousarray(array, dtype=np.int32).view(np.uint8)
    if format not in WRITABLE:
        raise UnsupportedModelError(
            f"a tensor can be written as {', '.join(WRITABLE)} or i32; got {format!r}"
        )
    values = np.ascontiguousarray(array, dtype=np.float32)
    return np.ascontiguousarray(gguf.quantize(values, _KINDS[format])).view(np.uint8)
