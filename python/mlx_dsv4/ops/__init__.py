"""The kernels as functions on ``mx.array``: one function, one formula, one reference twin."""

from mlx_dsv4.ops.attention import attention, attention_queries
from mlx_dsv4.ops.indexer import indexer_queries, indexer_scores, indexer_select, indexer_topk
from mlx_dsv4.ops.route import route_hashed, route_scored

__all__ = [
    "attention",
    "attention_queries",
    "indexer_queries",
    "indexer_scores",
    "indexer_select",
    "indexer_topk",
    "route_hashed",
    "route_scored",
]
