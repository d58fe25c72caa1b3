"""What servers import: load a model, open a session, stream text."""

from mlx_dsv4 import checked_backend  # noqa: F401 - before MLX is imported
from mlx_dsv4.engine.engine import Engine, LoadInfo
from mlx_dsv4.engine.sampling import Sampler, Sampling
from mlx_dsv4.engine.session import Generation, Session, Statistics, decode_limit

__all__ = [
    "Engine",
    "Generation",
    "LoadInfo",
    "Sampler",
    "Sampling",
    "Session",
    "Statistics",
    "decode_limit",
]
