"""A .metal source as a cubin: machine code of NVIDIA's GPUs, made without one.

clang compiles the rewritten shader to PTX, and NVIDIA's ptxas makes machine code of it. ptxas and
libdevice, the mathematics, come from NVIDIA's wheels or from an installed toolkit.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mslsim.cache import digest, folder, own_digest, publish
from mslsim.compiler import (
    CLANGS,
    INCLUDE,
    PLAIN_MESSAGES,
    Compiler,
    first_errors,
    installed_compilers,
)
from mslsim.errors import ShaderError
from mslsim.rewriter import MslSyntaxError, rewrite

ARCHITECTURE = "sm_90"
# The oldest target: ptxas makes code for later GPUs of the same PTX.
PTX = (
    *("-x", "cuda", "--cuda-device-only", f"--cuda-gpu-arch={ARCHITECTURE}"),
    *("-nocudainc", "-nocudalib", "-nostdinc", "-nostdinc++", "-std=gnu++17"),
    *("-Xclang", "-target-feature", "-Xclang", "+ptx80"),
    *("-O2", "-w", "-Wno-c++11-narrowing", "-fno-strict-aliasing", "-gline-tables-only"),
    # Metal inlines everything; a call would keep a kernel's sums in memory.
    *("-mllvm", "-inline-threshold=10000"),
    # Rounding is part of the result.
    *("-ffp-contract=off", "-fno-cuda-flush-denormals-to-zero"),
    *PLAIN_MESSAGES,
)
PTXAS = ("-lineinfo", "--fmad=false")
# Every function runs on the device.
LIBRARY = f"""#pragma clang force_cuda_host_device begin
#include "{INCLUDE}/msl_library.h"
"""
TABLE = re.compile(r"\bmsl_table_(\w+)")


@dataclass(frozen=True)
class Toolkit:
    """What makes a cubin: clang, and two files of NVIDIA's."""

    compiler: Compiler
    ptxas: Path
    libdevice: Path

    def __str__(self) -> str:
        version = run([self.ptxas, "--version"]).splitlines()[-1]
        return f"{self.compiler.version}; ptxas {version}"


def cubin(source: str, name: str, architecture: str = ARCHITECTURE) -> Path:
    """The cubin of a source text with its includes in place; made, or found.

    Where MSLSIM_CUBINS names a folder, it is the only place to look: there need be no compiler.
    """
    if packed := os.environ.get("MSLSIM_CUBINS"):
        found = Path(packed) / packed_name(source, name, architecture)
        if not found.exists():
            raise ShaderError(f"no cubin of {name} in MSLSIM_CUBINS: {found} does not exist")
        return found
    tools = toolkit()
    key = digest(own_digest(), own_digest("cuda.py"), tools, PTX, PTXAS, architecture, source)
    target = folder() / f"{Path(name).stem}-{architecture}-{key}.cubin"
    if not target.exists():
        compile_cubin(source, name, architecture, target)
    return target


def packed_name(source: str, name: str, architecture: str = ARCHITECTURE) -> str:
    """The name of a cubin in a folder that MSLSIM_CUBINS may name."""
    return f"{Path(name).stem}-{architecture}-{digest(source)}.cubin"


def compile_cubin(source: str, name: str, architecture: str, target: Path) -> None:
    """Makes a cubin."""
    with publish(target) as partial:
        ptx = partial.with_suffix(".ptx")
        try:
            compile_ptx(source, name, ptx)
            run([toolkit().ptxas, f"-arch={architecture}", *PTXAS, ptx, "-o", partial])
        finally:
            ptx.unlink(missing_ok=True)


def compile_ptx(source: str, name: str, target: Path) -> None:
    """Makes PTX, the assembly that ptxas reads."""
    tools = toolkit()
    try:
        rewritten = rewrite(tools.compiler.preprocess(source, name, []))
    except MslSyntaxError as error:
        raise ShaderError(str(error)) from error
    unit = target.with_suffix(".cu")
    try:
        unit.write_text(f"{LIBRARY}{rewritten.text}\n")
        tools.compiler.run(
            *PTX,
            *("-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(tools.libdevice)),
            *("-S", "-o", str(target), str(unit)),
        )
    finally:
        unit.unlink(missing_ok=True)


def kernels_in(path: Path) -> list[str]:
    """The host names of the kernels in a cubin."""
    text = path.read_bytes().decode("latin-1")
    return sorted(set(TABLE.findall(text)))


def run(command: Iterable[str | Path]) -> str:
    """Runs a program; its standard output."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ShaderError(first_errors(done.stderr or done.stdout))
    return done.stdout


@cache
def toolkit() -> Toolkit:
    """The tools of this machine."""
    compilers = [c for c in installed_compilers() if c.command[0] in CLANGS]
    if not compilers:
        raise ShaderError(f"no compiler for CUDA: install one of {', '.join(CLANGS)}")
    return Toolkit(
        compilers[0],
        nvidia_file("bin/ptxas", "nvidia-cuda-nvcc"),
        nvidia_file("nvvm/libdevice/libdevice.10.bc", "nvidia-nvvm"),
    )


def nvidia_file(name: str, wheel: str) -> Path:
    """A file of NVIDIA's wheels, or of the toolkit in CUDA_HOME."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    found = [path for place in places for path in sorted(place.glob(f"*/{name}"))]
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    for path in (*found, home / name):
        if path.exists():
            return path
    raise ShaderError(f"no {name}: `pip install {wheel}`, or set CUDA_HOME; tried {home / name}")
