"""What runs an op in a test: the CPU kernels, the simulated Metal kernels, or a Mac's GPU.

``scalar``, ``avx2``, ... are the CPU kernels of one instruction set. ``sim`` runs the Metal
kernels on the simulator in its fast mode, ``sim-check`` with every check that it has and with
line coverage; ``cuda`` runs them on an NVIDIA GPU, ``metal`` on the GPU of a Mac.
"""

import os
import platform
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx

from cuda_kernels import family_cubin, split_library
from embed_metal import flatten
from mlx_dsv4 import _ext, ops

ORDERS = ("forward", "reverse", "random")
SIMULATORS = ("sim", "sim-check")
ROOT = Path(__file__).parents[1]
SHADERS = ROOT / "metal"
HAS_SIMULATOR = find_spec("mlx_dsv4._sim") is not None
# Its threads switch stacks in x86-64 assembly.
NEEDS_SIMULATOR = sys.platform == "linux" and platform.machine() == "x86_64"
# How an executor's shaders are compiled by what stands in for MLX's Metal backend.
MODES = {"sim": "fast", "sim-check": "cov", "cuda": "cuda"}


def cuda_problem() -> str:
    """Why kernels cannot run on an NVIDIA GPU here; empty where they can."""
    if not HAS_SIMULATOR:
        return "the simulator, which launches them, is not built"
    return str(import_module("mlx_dsv4._sim").cuda_unavailable())


EXECUTORS = (
    *_ext.available_isas(),
    *(SIMULATORS if HAS_SIMULATOR else ()),
    *(("cuda",) if not cuda_problem() else ()),
    *(("metal",) if mx.metal.is_available() else ()),
)


class SimulatedExtension:
    """Takes the place of ``_ext`` in the ops: kernels are simulated, the rest is ``_ext``'s."""

    def __init__(self) -> None:
        from mslsim.executor import Executor

        self.controls: Any = import_module("mlx_dsv4._sim")
        self.shaders: Path | None = None
        self.libraries: dict[str, set[str]] = defaultdict(set)  # by mode, those that were asked for
        self._kernels = Executor(self.controls)
        self.controls.set_compiler(self._compile)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels if hasattr(self.controls, name) else _ext, name)

    def _compile(self, name: str, source: str, mode: str) -> str:
        from mslsim.executor import compile_source

        self.libraries[mode].add(name)
        family, text, instantiation = split_library(source)
        if not family:
            path: str = compile_source(name, source, mode)
        else:
            if self.shaders is not None:
                text = flatten(self.shaders / f"{family}.metal")
            if mode == "cuda":
                path = str(family_cubin(family, text))
                note_launched(kernel_of(name))
            else:
                path = compile_source(name, text + instantiation, mode)
        return path


def kernel_of(library: str) -> str:
    """The kernel that a library was asked for; its name ends with a hash of the source."""
    return library.removeprefix("mlx_dsv4_").rpartition("_")[0]


def note_launched(kernel: str) -> None:
    """Adds a kernel to the file that DSV4_LAUNCHED names, for reports of runs."""
    if listed := os.environ.get("DSV4_LAUNCHED"):
        with Path(listed).open("a") as file:
            file.write(f"{kernel}\n")


@cache
def simulated_extension() -> SimulatedExtension:
    return SimulatedExtension()


def op_modules() -> list[ModuleType]:
    """The modules of ops that call the extension."""
    prefix = f"{ops.__name__}."
    modules = [module for name, module in sys.modules.items() if name.startswith(prefix)]
    return [module for module in modules if hasattr(module, "_ext")]


@contextmanager
def running_on(executor: str, *, order: str = "forward", seed: int = 0) -> Iterator[None]:
    """Ops made inside run on the executor, if they are evaluated inside.

    Args:
        executor: One of ``EXECUTORS``.
        order: Of the simulated threads, one of ``ORDERS``.
        seed: Of the random order.
    """
    if executor == "metal":
        mx.set_default_device(mx.gpu)
        yield
        return
    mx.set_default_device(mx.cpu)
    if executor in MODES:
        simulated, modules = simulated_extension(), op_modules()
        simulated.controls.set_mode(MODES[executor])
        simulated.controls.set_order(order)
        simulated.controls.set_seed(seed)
        simulated.controls.reset_encoders()
        replace_extension(modules, simulated)
        try:
            yield
        finally:
            replace_extension(modules, _ext)
    else:
        best = _ext.isa()
        _ext.set_isa(executor)
        try:
            yield
        finally:
            _ext.set_isa(best)


def replace_extension(modules: list[ModuleType], extension: object) -> None:
    for module in modules:
        module._ext = extension  # type: ignore[attr-defined]


def order_of(test: str, executor: str) -> tuple[str, int]:
    """Thread order and seed of a test: fixed for its name, different among tests."""
    seed = zlib.crc32(test.encode())
    return ("random" if executor == "sim-check" else ORDERS[seed % len(ORDERS)]), seed


def use_shaders_of(folder: Path) -> None:
    """The shaders of a folder are compiled instead of those inside the extension."""
    simulated_extension().shaders = folder
