"""What one token costs: bytes that must be read, and floating-point operations."""

from collections.abc import Mapping
from dataclasses import dataclass

from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.names import expected_tensors
from mlx_dsv4.gguf.reader import TensorInfo

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Work:
    """Of a call.

    Attributes:
        n_bytes: Of weights and cached rows, each read once.
        n_flops: Operations on them; a multiply-add is two.
    """

    n_bytes: int
    n_flops: int

    def __add__(self, other: "Work") -> "Work":
        return Work(self.n_bytes + other.n_bytes, self.n_flops + other.n_flops)


def weight_work(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> Work:
    """Of the weights that one token meets: of the routed experts those that it uses."""
    total = Work(0, 0)
    for name, spec in expected_tensors(config).items():
        info = tensors[name]
        rows = spec.shape[0]
        if name == "token_embd.weight" or spec.role == "ids":
            total += Work(info.n_bytes // rows, 0)
        elif name.endswith("_exps.weight"):
            share = min(config.experts_used, rows)
            total += Work(info.n_bytes * share // rows, 2 * info.n_elements * share // rows)
        elif spec.role == "matrix":
            total += Work(info.n_bytes, 2 * info.n_elements)
        else:
            matrix = len(spec.shape) == 2 and name.endswith("_fn.weight")
            total += Work(
                FLOAT32_BYTES * info.n_elements, 2 * info.n_elements if matrix else info.n_elements
            )
    return total


def row_work(config: ModelConfig, context: int, row_bytes: int = 2) -> Work:
    """Of the rows that a token reads which comes after ``context`` others.

    Args:
        config: Numbers of the model.
        context: Tokens in the cache.
        row_bytes: Of one value of a row.
    """
    total = Work(0, 0)
    for ratio in config.ratios:
        rows = min(context, config.window - 1) + 1
        if ratio:
            closed = (context + 1) // ratio
            rows += min(closed, config.top_k) if ratio == 4 else closed
        if ratio == 4:
            values = (context + 1) // ratio * config.indexer_dim
            total += Work(row_bytes * values, 2 * config.indexer_heads * values)
        values = rows * config.head_dim
        total += Work(row_bytes * values, 4 * config.heads * values)
    return total
