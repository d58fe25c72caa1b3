"""Packed matrices and bounds of products, for the kernel tests."""

from functools import cache

import numpy as np
from gguf.constants import GGML_QUANT_SIZES

import gguf
from arrays import EPS

FORMATS = ("f32", "f16", "bf16", "q8_0", "mxfp4")
# Byte offsets of the f16 scales in a block of each format that the gguf package cannot write.
SCALES = {
    **dict.fromkeys(("q4_0", "q5_0", "iq4_nl", "iq1_s", "iq4_xs"), (0,)),
    **dict.fromkeys(("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"), (0,)),
    **dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (0, 2)),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q6_k": (208,),
    "iq1_m": (),  # in parts: see set_scales
}
CODED_FORMATS = tuple(SCALES)
ELEMENTS = {
    format: GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format.upper()]][0]
    for format in ("q8_0", "mxfp4", *CODED_FORMATS)
}


def pack(values: np.ndarray, format: str) -> np.ndarray:
    """Values ``[..., K]`` as raw blocks ``[..., row_bytes]`` uint8, by the gguf package."""
    rows = values.reshape(-1, values.shape[-1]).astype(np.float32)
    blocks = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[format.upper()])
    return np.ascontiguousarray(blocks).view(np.uint8).reshape(*values.shape[:-1], -1)


def set_scales(blocks: np.ndarray, format: str, scales: np.ndarray) -> None:
    """Write the f16 scales ``[..., 2]`` of blocks ``[..., block bytes]``."""
    for i, offset in enumerate(SCALES[format]):
        blocks[..., offset : offset + 2] = scales[..., i : i + 1].view(np.uint8)
    if format == "iq1_m":
        bits = scales[..., 0].view(np.uint16)
        for i in range(4):
            high = (bits >> 4 * i & 15).astype(np.uint8) << 4
            blocks[..., 49 + 2 * i] = blocks[..., 49 + 2 * i] & 15 | high


@cache
def magnitude(format: str) -> float:
    """Root mean square of the values of random blocks whose scales are 1."""
    kind = gguf.GGMLQuantizationType[format.upper()]
    blocks = np.random.default_rng(0).integers(0, 256, (64, GGML_QUANT_SIZES[kind][1]), np.uint8)
    set_scales(blocks, format, np.ones((64, 2), np.float16))
    return float(np.sqrt(np.mean(np.square(gguf.quants.dequantize(blocks, kind)))))


def random_blocks(shape: tuple[int, ...], format: str, seed: int = 0) -> np.ndarray:
    """Blocks of random bytes for values of ``shape`` ``[..., K]``, which are of about 1."""
    elements, n_bytes = GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format.upper()]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // elements, n_bytes), np.uint8)
    scales = rng.standard_normal((*blocks.shape[:-1], 2)) / magnitude(format)
    set_scales(blocks, format, scales.astype(np.float16))
    return blocks.reshape(*shape[:-1], -1)


def random_rows(shape: tuple[int, ...], format: str, seed: int = 0) -> np.ndarray:
    """Raw blocks for values of ``shape`` ``[..., K]``: normally distributed where the gguf package
    can write the format."""
    if format in SCALES:
        return random_blocks(shape, format, seed)
    return pack(np.random.default_rng(seed).standard_normal(shape), format)


def product_bound(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Largest error of ``x @ w.T``, per element.

    A term goes through at most ceil(K / 16) roundings in its lane and 4 when the lanes are
    added, so the error is gamma_n times the sum of magnitudes with n = ceil(K / 16) + 4.
    """
    n = -(-x.shape[-1] // 16) + 4
    gamma = n * EPS / (1 - n * EPS)
    return np.asarray(gamma * (np.abs(x, dtype=np.float64) @ np.abs(w, dtype=np.float64).T))
