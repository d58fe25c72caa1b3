"""Rows of random weights in any block format, also those that the gguf package cannot write."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.gguf.blocks import WRITABLE, block_shape, dequantize, quantize

# Byte offsets of the f16 scales in a block.
_SCALES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("q4_0", "q5_0", "iq4_nl", "iq1_s", "iq4_xs"), (0,)),
    **dict.fromkeys(("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"), (0,)),
    **dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (0, 2)),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q6_k": (208,),
    "iq1_m": (),  # in parts: see _set_scales
}
CODED_FORMATS = tuple(_SCALES)


def random_rows(
    shape: tuple[int, ...], format: str, *, std: float = 1.0, seed: int = 0
) -> NDArray[np.uint8]:
    """Raw blocks of weights with mean about 0 and standard deviation about ``std``.

    They are normally distributed where the gguf package can write the format, else made of random
    bytes and random scales.

    Args:
        shape: ``[..., K]`` of the weights; K is a whole number of blocks.
        format: One of :data:`mlx_dsv4.gguf.blocks.PACKED`.
        std: Of the weights.
        seed: Of the numbers.

    Returns:
        ``[..., row_bytes]`` uint8.
    """
    rng = np.random.default_rng(seed)
    if format in WRITABLE:
        return quantize(std * rng.standard_normal(shape), format)
    elements, n_bytes = block_shape(format)
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // elements, n_bytes), np.uint8)
    scales = std * rng.standard_normal((*blocks.shape[:-1], 2)) / _magnitude(format)
    _set_scales(blocks, format, scales.astype(np.float16))
    return blocks.reshape(*shape[:-1], -1)


def _set_scales(blocks: NDArray[np.uint8], format: str, scales: NDArray[np.float16]) -> None:
    """Write the f16 scales ``[..., 2]`` of blocks ``[..., block bytes]``."""
    for i, offset in enumerate(_SCALES[format]):
        blocks[..., offset : offset + 2] = scales[..., i : i + 1].view(np.uint8)
    if format == "iq1_m":
        bits = scales[..., 0].view(np.uint16)
        for i in range(4):
            high = (bits >> 4 * i & 15).astype(np.uint8) << 4
            blocks[..., 49 + 2 * i] = blocks[..., 49 + 2 * i] & 15 | high


@cache
def _magnitude(format: str) -> float:
    """Root mean square of the weights of random blocks whose scales are 1."""
    elements, n_bytes = block_shape(format)
    blocks = np.random.default_rng(0).integers(0, 256, (64, n_bytes), np.uint8)
    _set_scales(blocks, format, np.ones((64, 2), np.float16))
    values = dequantize(blocks, format, (64, elements))
    return float(np.sqrt(np.mean(np.square(values))))
