"""Errors of queued CPU kernels, raised where they do no harm.

MLX counts a task as active for ever when an error takes its place in the stream's queue, and with
two of them a later ``eval`` may wait without end. So such a test runs in a process of its own.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from executors import running_on
from mlx_dsv4 import _ext


def on_the_cpu(evaluate: Callable[..., object], *args: Any) -> None:
    """Runs a function of a module on the best instruction set."""
    with running_on(_ext.isa()):
        evaluate(*args)


def raise_elsewhere(evaluate: Callable[..., object], *args: Any) -> None:
    """Raises here what the function of a module raises in another process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(on_the_cpu, evaluate, *args).result()
