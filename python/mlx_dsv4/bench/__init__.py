"""Benchmarks: one module per kernel family, each with ``run(report)``; ``cache``, ``sessions``."""

from importlib import import_module

from mlx_dsv4.bench.harness import Report

FAMILIES = (
    "attention",
    "compressor",
    "experts",
    "hyper",
    "indexer",
    "matmul",
    "route",
    "window",
)


def run_family(family: str, report: Report) -> None:
    """Measure the kernels of one family at V4-Flash's shapes.

    Args:
        family: One of ``FAMILIES``.
        report: Takes the figures.
    """
    import_module(f"mlx_dsv4.bench.{family}").run(report)
