"""The runtime library, libmslrt.so: which file it is, and its C interface."""

import ctypes
import importlib.util
from ctypes import POINTER, c_bool, c_char_p, c_double, c_int, c_int32, c_uint8, c_uint32, c_uint64
from ctypes import c_void_p as pointer
from functools import cache
from pathlib import Path

from mslsim.cache import PACKAGE, folder, own_digest, publish
from mslsim.compiler import default_compiler
from mslsim.errors import ShaderError

ABI = 1
NAME = "libmslrt.so"
MAX_BUFFERS = 31
READ_ONLY, FRESH = 1, 2
ORDERS = ("forward", "reverse", "random")
DIVERGENCE = ("error", "note", "allow")


class Param(ctypes.Structure):
    """One parameter of a kernel: msl_param of msl_abi.h."""

    _fields_ = (
        ("kind", c_uint8),
        ("index", c_int),
        ("name", c_char_p),
        ("type", c_char_p),
        ("function_constant", POINTER(c_bool)),
        ("readonly", c_bool),
    )


class KernelEntry(ctypes.Structure):
    """A kernel of a loaded library: msl_kernel of msl_abi.h."""

    _fields_ = (
        ("name", c_char_p),
        ("entry", pointer),
        ("params", POINTER(Param)),
        ("n_params", c_int),
        ("max_threads", c_int),
        ("source", c_char_p),
    )


class Launch(ctypes.Structure):
    """One dispatch: msl_launch of simulator.h."""

    _fields_ = (
        ("kernel", POINTER(KernelEntry)),
        ("buffer_data", pointer * MAX_BUFFERS),
        ("buffer_bytes", c_uint64 * MAX_BUFFERS),
        ("buffer_flags", c_int32 * MAX_BUFFERS),
        ("threadgroup_bytes", c_uint32 * 32),
        ("grid", c_uint32 * 3),
        ("threadgroup", c_uint32 * 3),
        ("grid_is_threads", c_int32),
        ("order", c_int32),
        ("seed", c_uint32),
        ("check", c_int32),
        ("divergence", c_int32),
        ("workers", c_int32),
        ("flush_denormals", c_int32),
        ("timeout_s", c_double),
        ("simd_ops_order_memory", c_int32),
        ("failed", c_int32),
        ("run_s", c_double),
        ("copy_s", c_double),
        ("findings", pointer),
    )


class RawFinding(ctypes.Structure):
    """msl_finding of simulator.h."""

    _fields_ = (
        ("kind", c_char_p),
        ("text", c_char_p),
        ("offset", c_uint64),
        ("other_offset", c_uint64),
    )


class Constant(ctypes.Structure):
    """The value of a function constant: msl_constant of simulator.h."""

    _fields_ = (("index", c_int32), ("name", c_char_p), ("integer", c_uint64), ("real", c_double))


class DeclaredConstant(ctypes.Structure):
    """msl_declared_constant of simulator.h."""

    _fields_ = (("index", c_int32), ("name", c_char_p), ("defined", c_int32))


SIGNATURES = {
    "msl_abi": (c_int, []),
    "msl_open": (pointer, [c_char_p, c_int, POINTER(Constant)]),
    "msl_open_error": (c_char_p, []),
    "msl_kernel_count": (c_int, [pointer]),
    "msl_kernel_at": (POINTER(KernelEntry), [pointer, c_int]),
    "msl_constant_count": (c_int, [pointer]),
    "msl_constant_at": (DeclaredConstant, [pointer, c_int]),
    "msl_library_count": (c_int, []),
    "msl_library_at": (pointer, [c_int]),
    "msl_library_path": (c_char_p, [pointer]),
    "msl_dispatch": (None, [POINTER(Launch)]),
    "msl_finding_count": (c_int, [pointer]),
    "msl_finding_at": (RawFinding, [pointer, c_int]),
    "msl_free_findings": (None, [pointer]),
    "msl_coverage_count": (c_int, [pointer]),
    "msl_coverage_at": (c_int, [pointer, c_int, POINTER(c_uint64)]),
}


def loaded_path() -> Path | None:
    """The runtime library that this process has loaded already."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("/" + NAME):
            return Path(line[line.index("/") :])
    return None


def path() -> Path:
    """The one runtime library of this process: loaded, built beside `_sim`, or compiled here."""
    if loaded := loaded_path():
        return loaded
    package = importlib.util.find_spec("mlx_dsv4")
    for place in (package.submodule_search_locations or []) if package else []:
        if (built := Path(place) / NAME).exists():
            return built
    return compiled_path()


def compiled_path() -> Path:
    """The runtime library in the cache; compiles it on first use."""
    compiler = default_compiler()
    library = folder() / own_digest("include/msl_abi.h", "runtime/*") / NAME
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        with publish(library) as partial:
            compiler.run(
                *("-std=c++20", "-O2", "-g1", "-fPIC", "-shared", "-fno-exceptions", "-w"),
                *("-fno-sanitize=all", f"-Wl,-soname,{NAME}", "-o", str(partial)),
                *map(str, sorted((PACKAGE / "runtime").glob("*.cpp"))),
                *("-lpthread", "-ldl", "-lm"),
            )
    return library


@cache
def runtime() -> ctypes.CDLL:
    """The runtime library; the shaders' shared objects resolve against it."""
    library = ctypes.CDLL(str(path()), mode=ctypes.RTLD_GLOBAL)
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if library.msl_abi() != ABI:
        raise ShaderError(f"{path()} belongs to another version of mslsim; build it again")
    return library
