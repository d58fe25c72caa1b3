"""The kernels as functions on ``mx.array``: one function, one formula, one reference twin."""

from mlx_dsv4.ops.hyper import hyper_head, hyper_post, hyper_pre
from mlx_dsv4.ops.memory import MappedFile, data_pointer, uninitialized
from mlx_dsv4.ops.route import route_hashed, route_scored

__all__ = [
    "MappedFile",
    "data_pointer",
    "hyper_head",
    "hyper_post",
    "hyper_pre",
    "route_hashed",
    "route_scored",
    "uninitialized",
]
