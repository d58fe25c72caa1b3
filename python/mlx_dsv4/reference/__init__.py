"""What every op must compute, in plain NumPy and float64.

One function per op, with the op's name and arguments. Values that the op rounds (rows, round
trips) are rounded here at the same places. Tests, benchmarks and docs use these and no other
reference. Clarity wins over speed.
"""

from mlx_dsv4.reference.attention import attention, attention_queries
from mlx_dsv4.reference.compressor import compressor_append, empty_state
from mlx_dsv4.reference.experts import experts
from mlx_dsv4.reference.hyper import hyper_head, hyper_post, hyper_pre
from mlx_dsv4.reference.indexer import (
    indexer_queries,
    indexer_scores,
    indexer_select,
    indexer_topk,
    visible_rows,
)
from mlx_dsv4.reference.matmul import dequantize, embed, matmul
from mlx_dsv4.reference.rope import inverse_frequencies, rotate_tail, rotation_table
from mlx_dsv4.reference.route import route_hashed, route_scored
from mlx_dsv4.reference.window import window_rows, window_write

__all__ = [
    "attention",
    "attention_queries",
    "compressor_append",
    "dequantize",
    "embed",
    "empty_state",
    "experts",
    "hyper_head",
    "hyper_post",
    "hyper_pre",
    "indexer_queries",
    "indexer_scores",
    "indexer_select",
    "indexer_topk",
    "inverse_frequencies",
    "matmul",
    "rotate_tail",
    "rotation_table",
    "route_hashed",
    "route_scored",
    "visible_rows",
    "window_rows",
    "window_write",
]
