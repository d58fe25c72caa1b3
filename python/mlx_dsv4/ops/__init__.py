"""The kernels as functions on ``mx.array``: one function, one formula, one reference twin."""

from mlx_dsv4 import checked_backend  # noqa: F401 - before MLX is imported
from mlx_dsv4.ops.attention import attention, attention_queries
from mlx_dsv4.ops.compressor import compressor_append
from mlx_dsv4.ops.experts import experts
from mlx_dsv4.ops.hyper import hyper_head, hyper_post, hyper_pre
from mlx_dsv4.ops.indexer import indexer_queries, indexer_scores, indexer_select, indexer_topk
from mlx_dsv4.ops.machine import (
    ARITHMETIC,
    CpuKernels,
    DeviceChoice,
    cpu_kernels,
    kernel_device,
    multiply_adds,
    read_all,
    widened_multiply_adds,
)
from mlx_dsv4.ops.matmul import embed, matmul
from mlx_dsv4.ops.memory import MappedFile, data_pointer, host_bytes, uninitialized
from mlx_dsv4.ops.route import route_hashed, route_scored
from mlx_dsv4.ops.window import window_rows, window_write

__all__ = [
    "ARITHMETIC",
    "CpuKernels",
    "DeviceChoice",
    "MappedFile",
    "attention",
    "attention_queries",
    "compressor_append",
    "cpu_kernels",
    "data_pointer",
    "embed",
    "experts",
    "host_bytes",
    "hyper_head",
    "hyper_post",
    "hyper_pre",
    "indexer_queries",
    "indexer_scores",
    "indexer_select",
    "indexer_topk",
    "kernel_device",
    "matmul",
    "multiply_adds",
    "read_all",
    "route_hashed",
    "route_scored",
    "uninitialized",
    "widened_multiply_adds",
    "window_rows",
    "window_write",
]
