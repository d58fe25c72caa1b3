"""Benchmarks: one module per kernel family, each with ``run(report)``; ``cache``, ``sessions``."""

from importlib import import_module

from mlx_dsv4.bench import machine
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
    """Measure the kernels of one family at V4-Flash's shapes, beside ceilings of that moment.

    Args:
        family: One of ``FAMILIES``.
        report: Takes the figures.
    """
    for ceiling in (machine.read_gb_s, machine.gflop_s, machine.eval_us):
        ceiling.cache_clear()
    import_module(f"mlx_dsv4.bench.{family}").run(report)
