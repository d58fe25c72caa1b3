"""The forward pass: weights bound from a file, and the layers over them."""

from mlx_dsv4 import checked_backend  # noqa: F401 - before MLX is imported
from mlx_dsv4.model.model import Model, Numerics
from mlx_dsv4.model.weights import WeightMemory, Weights, load_weights

__all__ = ["Model", "Numerics", "WeightMemory", "Weights", "load_weights"]
