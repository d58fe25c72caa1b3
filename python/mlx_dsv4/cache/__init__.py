"""Caches: sizes, positions and the held buffers of a session."""

from mlx_dsv4 import checked_backend  # noqa: F401 - before MLX is imported
from mlx_dsv4.cache.cache import Cache
from mlx_dsv4.cache.fingerprint import Fingerprint
from mlx_dsv4.cache.layer import LayerCache
from mlx_dsv4.cache.plan import (
    CachePlan,
    LayerPlan,
    SpanPlan,
    Step,
    grown_capacity,
    plan_cache,
    plan_span,
)
from mlx_dsv4.cache.saved import SavedCache, SavedFile, load_cache, save_cache
from mlx_dsv4.cache.snapshot import Snapshot
from mlx_dsv4.cache.store import CacheStore

__all__ = [
    "Cache",
    "CachePlan",
    "CacheStore",
    "Fingerprint",
    "LayerCache",
    "LayerPlan",
    "SavedCache",
    "SavedFile",
    "Snapshot",
    "SpanPlan",
    "Step",
    "grown_capacity",
    "load_cache",
    "plan_cache",
    "plan_span",
    "save_cache",
]
