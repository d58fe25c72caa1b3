"""The kernels as functions on ``mx.array``: one function, one formula, one reference twin."""

from mlx_dsv4.ops.experts import experts
from mlx_dsv4.ops.matmul import embed, matmul
from mlx_dsv4.ops.route import route_hashed, route_scored

__all__ = [
    "embed",
    "experts",
    "matmul",
    "route_hashed",
    "route_scored",
]
