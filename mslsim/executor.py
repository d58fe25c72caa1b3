"""The ops of this package, computed by their Metal kernels on the simulator."""

import atexit
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from mslsim.cuda import cubin
from mslsim.library import Library
from mslsim.report import source_lines
from mslsim.runtime import runtime


class Executor:
    """Looks like the extension module; what its ops return is computed by the simulator.

    Attributes that are no functions, and the simulator's own controls, are passed through.
    """

    def __init__(self, module: ModuleType) -> None:
        runtime()
        self._module = module
        module.set_compiler(compile_source)
        module.set_symbolizer(spelled_lines)
        atexit.register(module.set_compiler, None)
        atexit.register(module.set_symbolizer, None)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._module, name)
        return self._simulated(attribute) if callable(attribute) else attribute

    def _simulated(self, op: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(op)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = op(*args, **kwargs)
            for array in result if isinstance(result, tuple | list) else (result,):
                if hasattr(array, "__mlx_array__") or hasattr(array, "dtype"):
                    self._module.simulate(array)
            return result

        return call


@cache
def compile_source(name: str, source: str, mode: str) -> str:
    """Compiles the source of a shader library; the path of the shared object or of the cubin."""
    if mode == "cuda":
        return str(cubin(source, f"{name}.metal"))
    return str(Library(source=source, name=f"{name}.metal", mode=mode).shared_object)


def spelled_lines(library: str, offset: int) -> str:
    """The source lines of an address in a compiled library, innermost first."""
    return " <- ".join(source_lines(Path(library), offset))
