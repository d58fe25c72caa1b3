"""The kernels as functions on ``mx.array``: one function, one formula, one reference twin."""

from mlx_dsv4.ops.compressor import compressor_append
from mlx_dsv4.ops.memory import MappedFile, data_pointer, uninitialized
from mlx_dsv4.ops.route import route_hashed, route_scored
from mlx_dsv4.ops.window import window_rows, window_write

__all__ = [
    "MappedFile",
    "compressor_append",
    "data_pointer",
    "route_hashed",
    "route_scored",
    "uninitialized",
    "window_rows",
    "window_write",
]
