"""Products with packed matrices, beside MLX's own product of the same numbers.

One token is bound by reading the weights once: the calls go through 512 MiB of them, more than
any cache holds. 128 tokens are bound by arithmetic: 2 * T * N * K operations.
"""

from collections.abc import Callable, Iterator
from itertools import cycle

import mlx.core as mx
import numpy as np

import gguf
from mlx_dsv4 import ops
from mlx_dsv4.bench.harness import Report, time_us

FORMATS = ("f32", "f16", "bf16", "q8_0", "mxfp4")
SHAPES = ((4096, 4096), (1024, 4096))
WEIGHT_BYTES = 2**29


def packed(n_rows: int, k: int, format: str) -> mx.array:
    """Raw blocks of ``n_rows`` rows; 16 random rows repeat."""
    values = np.random.default_rng(0).standard_normal((16, k)).astype(np.float32)
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[format.upper()])
    return mx.array(np.tile(blocks.view(np.uint8), (n_rows // 16, 1)))


def matrices(n_rows: int, k: int, format: str) -> Iterator[mx.array]:
    """Matrices of 512 MiB together, over and over."""
    bytes_per_row = packed(16, k, format).shape[1]
    count = max(1, WEIGHT_BYTES // (n_rows * bytes_per_row))
    everything = packed(n_rows * count, k, format)
    parts = [everything[i * n_rows : (i + 1) * n_rows] for i in range(count)]
    mx.eval(parts)
    return cycle(parts)


def peer(x: mx.array, n_rows: int, k: int, format: str) -> tuple[str, Callable[[], mx.array]]:
    """MLX's product with a matrix of the same shape and the nearest format that it has."""
    w = mx.random.normal((n_rows, k))
    if format == "q8_0":
        q, scales, *rest = mx.quantize(w, group_size=32, bits=8)
        biases = rest[0]
        mx.eval(q, scales, biases)
        return "mx.quantized_matmul", lambda: mx.quantized_matmul(
            x, q, scales, biases, group_size=32, bits=8
        )
    if format == "mxfp4":
        q, scales, *_ = mx.quantize(w, group_size=32, bits=4, mode="mxfp4")
        mx.eval(q, scales)
        return "mx.quantized_matmul", lambda: mx.quantized_matmul(
            x, q, scales, group_size=32, bits=4, mode="mxfp4"
        )
    dtype = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}[format]
    x, w = x.astype(dtype), w.astype(dtype)
    mx.eval(x, w)
    return "x @ w.T", lambda: x @ w.T


def measure(
    report: Report, weights: Iterator[mx.array], n_rows: int, k: int, format: str, n_tokens: int
) -> None:
    x = mx.random.normal((n_tokens, k))
    mx.eval(x)
    case = f"{format} T{n_tokens} N{n_rows} K{k}"
    n_bytes = next(weights).nbytes + 4 * n_tokens * (n_rows + k)
    n_flops = 2 * n_tokens * n_rows * k
    samples = time_us(lambda: ops.matmul(x, next(weights), format=format))
    report("matmul", case, samples, n_bytes=n_bytes, n_flops=n_flops)
    name, call = peer(x, n_rows, k, format)
    samples = time_us(call, repeats=3)
    report(name, case, samples, n_bytes=n_bytes, n_flops=n_flops)


def run(report: Report) -> None:
    for n_rows, k in SHAPES:
        for format in FORMATS:
            weights = matrices(n_rows, k, format)
            for n_tokens in (1, 128):
                measure(report, weights, n_rows, k, format, n_tokens)
