"""``mlx-dsv4 doctor``: what works on this machine, and what to do about what does not.

Imports nothing that may fail: each probe imports what it tests.
"""

import json
import platform
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from mlx_dsv4 import backend


def python() -> str:
    """Interpreter and system."""
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def mlx_version() -> str:
    """The installed MLX is the one this build was compiled for."""
    wanted, installed = backend.built_for(), backend.installed_mlx()
    if wanted != installed:
        raise RuntimeError(f"compiled for mlx {wanted}, installed is {installed}")
    return installed


def mlx_backend() -> str:
    """mlx.core loads and computes."""
    import mlx.core as mx

    if mx.add(mx.array(1), mx.array(2), stream=mx.cpu).item() != 3:
        raise RuntimeError("mx.add gave a wrong sum")
    names = [
        name
        for name, there in (("Metal", mx.metal.is_available()), ("CUDA", mx.cuda.is_available()))
        if there
    ]
    return " and ".join([*names, "CPU"])


def extension() -> str:
    """The compiled extension loads."""
    import mlx.core  # noqa: F401 - registers the array types that _ext needs

    from mlx_dsv4 import _ext

    return f"built with nanobind {_ext.__nanobind_version__} for mlx {_ext.__mlx_version__}"


def arrays_cross() -> str:
    """An mx.array crosses into the extension and back: the nanobind ABIs agree."""
    import mlx.core as mx

    from mlx_dsv4 import ops

    ids, weights = ops.route_scored(
        mx.array([[0.0, 0.0, -1.0]]), mx.zeros(3), k=2, scale=1.0, stream=mx.Device(mx.cpu, 0)
    )
    if ids.tolist() != [[0, 1]] or weights.tolist() != [[0.5, 0.5]]:
        raise RuntimeError(f"route_scored gave {ids.tolist()}, {weights.tolist()}")
    return "mx.array accepted, route_scored is right"


def cpu() -> str:
    """Instruction set the kernels use, of those this CPU has."""
    import mlx.core  # noqa: F401 - registers the array types that _ext needs

    from mlx_dsv4 import _ext

    available = ", ".join(_ext.available_isas())
    return f"kernels use {_ext.isa()} (this CPU runs {available}), {_ext.num_threads()} threads"


def shaders() -> str:
    """Where the GPU kernels come from; on a GPU, one of them gives the right answer."""
    import mlx.core as mx

    from mlx_dsv4 import _ext, ops

    origin: str = _ext.shader_origin()
    if not mx.metal.is_available():
        return origin
    logits = mx.array([[0.0, 0.0, -1.0]])
    ids, weights = ops.route_scored(logits, mx.zeros(3), k=2, scale=1.0, stream=mx.Device(mx.gpu))
    if ids.tolist() != [[0, 1]] or weights.tolist() != [[0.5, 0.5]]:
        raise RuntimeError(f"route_scored gave {ids.tolist()}, {weights.tolist()} on the GPU")
    return f"{origin}; route_scored is right"


def memory() -> str:
    """What a cache may take, and what this process holds."""
    from mlx_dsv4.memory import available_bytes, process_memory

    free, own = available_bytes(), process_memory()
    text = "unknown" if free is None else f"{free / 1e9:.1f} GB available"
    if own is None:
        return text
    return (
        f"{text}; this process: {own.resident / 1e6:.0f} MB resident, of them "
        f"{own.file_backed / 1e6:.0f} MB file-backed, {own.anonymous / 1e6:.0f} MB anonymous"
    )


Probe = Callable[[], str]

REBUILD = f"rebuild: {backend.REINSTALL}"
PROBES: tuple[tuple[Probe, str], ...] = (
    (python, "use Python 3.11 or later"),
    (memory, "close other programs or choose a smaller context"),
    (mlx_version, f"install that mlx, or {REBUILD}"),
    (mlx_backend, "on Linux install a backend: pip install 'mlx-dsv4[cpu]'"),
    (extension, REBUILD),
    (arrays_cross, "rebuild with the nanobind that this mlx was built with"),
    (cpu, REBUILD),
    (shaders, REBUILD),
)
# These say nothing of their own while one of those before them fails.
NEED_MLX = (extension, arrays_cross, cpu, shaders)


def probe_all() -> list[dict[str, object]]:
    """What each probe found, and what to do where it failed."""
    results: list[dict[str, object]] = []
    broken = ""
    for probe, remedy in PROBES:
        name = probe.__name__
        if broken and probe in NEED_MLX:
            results.append({"probe": name, "ok": False, "found": f"needs {broken}"})
            continue
        try:
            results.append({"probe": name, "ok": True, "found": probe()})
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
            results.append({"probe": name, "ok": False, "found": found, "remedy": remedy})
            broken = broken or name
    return results


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for reports.")] = False,
) -> None:
    """Check the installation; exit code 1 if something does not work."""
    results = probe_all()
    if as_json:
        typer.echo(json.dumps(results, indent=2))
    else:
        for result in results:
            mark = "ok  " if result["ok"] else "FAIL"
            typer.echo(f"{mark}  {result['probe']:<13} {result['found']}")
            if "remedy" in result:
                typer.echo(f"      {'':<13} -> {result['remedy']}")
    if not all(result["ok"] for result in results):
        sys.exit(1)
