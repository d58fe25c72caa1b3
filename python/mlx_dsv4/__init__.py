"""DeepSeek-V4-Flash on MLX: caches, lightning indexer, verifier prefill and decoding.

The public names load on first use, so that ``mlx-dsv4 doctor`` starts where MLX does not.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_dsv4.demo import DEMO_MODEL
    from mlx_dsv4.engine import Engine, Params, Result, Session, Stream

__version__ = "0.1.0"

_HOMES = {
    "DEMO_MODEL": "mlx_dsv4.demo",
    "Engine": "mlx_dsv4.engine",
    "Params": "mlx_dsv4.engine",
    "Result": "mlx_dsv4.engine",
    "Session": "mlx_dsv4.engine",
    "Stream": "mlx_dsv4.engine",
}

__all__ = ["DEMO_MODEL", "Engine", "Params", "Result", "Session", "Stream", "__version__"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'mlx_dsv4' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
