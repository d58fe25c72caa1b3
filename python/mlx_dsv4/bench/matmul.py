"""Products with packed matrices in every block format, beside MLX's own product.

One token is bound by reading the weights once: the calls go through 256 MiB of them, more than
any cache holds. 128 tokens are bound by arithmetic: 2 * T * N * K operations.
"""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Literal

import mlx.core as mx
import numpy as np

from mlx_dsv4 import ops
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.machine import time_us
from mlx_dsv4.gguf.blocks import PACKED
from mlx_dsv4.gguf.random_rows import random_rows

N_ROWS, K = 4096, 4096
WEIGHT_BYTES = 2**28
# How MLX stores matrices of the same weights to the bit: its group is 32 weights.
LOSSLESS: dict[str, tuple[int, Literal["affine", "mxfp4"]]] = {
    "q8_0": (8, "affine"),
    "q4_0": (4, "affine"),
    "q4_1": (4, "affine"),
    "q5_0": (5, "affine"),
    "q5_1": (5, "affine"),
    "mxfp4": (4, "mxfp4"),
}
DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def packed(n_rows: int, k: int, format: str) -> mx.array:
    """Raw blocks of ``n_rows`` rows; 16 random rows repeat."""
    return mx.array(np.tile(random_rows((16, k), format), (n_rows // 16, 1)))


def matrices(format: str) -> Iterator[mx.array]:
    """Matrices of 256 MiB together, over and over."""
    row_bytes = packed(16, K, format).shape[1]
    count = max(1, WEIGHT_BYTES // (N_ROWS * row_bytes))
    everything = packed(N_ROWS * count, K, format)
    parts = [everything[i * N_ROWS : (i + 1) * N_ROWS] for i in range(count)]
    mx.eval(parts)
    return cycle(parts)


def peer(x: mx.array, format: str) -> tuple[str, Callable[[], mx.array]] | None:
    """MLX's product with a matrix of the same shape and weights as precise, where it has one."""
    w = mx.random.normal((N_ROWS, K))
    if format in DTYPES:
        x, w = x.astype(DTYPES[format]), w.astype(DTYPES[format])
        mx.eval(x, w)
        return "x @ w.T", lambda: x @ w.T
    if format not in LOSSLESS:
        return None
    bits, mode = LOSSLESS[format]
    q, scales, *rest = mx.quantize(w, group_size=32, bits=bits, mode=mode)
    biases = rest[0] if rest else None
    mx.eval(q, scales, rest)
    return "mx.quantized_matmul", lambda: mx.quantized_matmul(
        x, q, scales, biases, group_size=32, bits=bits, mode=mode
    )


def measure(report: Report, weights: Iterator[mx.array], format: str, n_tokens: int) -> None:
    x = mx.random.normal((n_tokens, K))
    mx.eval(x)
    case = f"{format} T{n_tokens} N{N_ROWS} K{K}"
    n_bytes = next(weights).nbytes + 4 * n_tokens * (N_ROWS + K)
    n_flops = 2 * n_tokens * N_ROWS * K
    samples = time_us(lambda: ops.matmul(x, next(weights), format=format))
    report("matmul", case, samples, n_bytes=n_bytes, n_flops=n_flops)
    if other := peer(x, format):
        name, call = other
        samples = time_us(call, repeats=3, warmup=1)
        report(name, case, samples, n_bytes=n_bytes, n_flops=n_flops)


def run(report: Report) -> None:
    for format in PACKED:
        weights = matrices(format)
        for n_tokens in (1, 128):
            measure(report, weights, format, n_tokens)
