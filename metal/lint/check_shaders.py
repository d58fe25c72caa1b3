"""Checks Metal shaders without Apple's compiler: ``python check_shaders.py FILE.metal...``

Every shader, with each kernel of its ahead-of-time list instantiated, goes through clang's
OpenCL C++ front end (see dialect.py) under the rules of MSL 3.1, which macOS 14 compiles, and
of MSL 4.1. The compiler is the one in the ``ziglang`` wheel. What passes here may still be
refused by Apple's compiler; what fails here would be.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dialect import CXX17, Problem, translate
from one_definition import clashes

VERSIONS = (310, 410)
LIBRARY = Path(__file__).parent / "include"
CLANG = (sys.executable, "-m", "ziglang", "clang")

PREPROCESS = (
    *("-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", "-undef"),
    *("-D__METAL__=1", "-D__METAL_MACOS__=1", "-D__HAVE_BFLOAT__=1", "-DDSV4_EVERY_KERNEL"),
    *("-isystem", str(LIBRARY)),
)
CHECK = (
    *("-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "-cl-single-precision-constant"),
    *("-target", "x86_64-linux-gnu", "-Xclang", "-cl-ext=+cl_khr_fp16", "-fsyntax-only"),
    *("-ferror-limit=0", "-fno-caret-diagnostics", "-Wall", "-Wextra"),
    # Metal has no implicit conversion to bfloat; to half, one that narrows should be seen.
    "-Wimplicit-float-conversion",
    # The library has declarations alone.
    *("-Wno-undefined-inline", "-Wno-undefined-internal"),
    # The file's own constants are for the host too; pragmas are checked by name.
    *("-Wno-unused-const-variable", "-Wno-unknown-pragmas"),
    # `constant` is `const __constant`, and is written after `const` as well.
    "-Wno-duplicate-decl-specifier",
    *("-Dkernel=", "-Dconstant=const __constant", "-Ddevice=__global"),
    *("-Dthreadgroup=__local", "-Dthread=__private"),
)
DIAGNOSTIC = re.compile(r"(.+?):(\d+):\d+: (error|fatal error|warning|note): (.*)")
# Metal copies a struct from any address space. Upstream clang's implicit copy constructor takes
# a generic reference, which `constant` does not convert to.
COPY_FAILS = re.compile(r"no matching constructor for initialization of '\w+'")
COPY_OF_CONSTANT = "cannot bind reference in address space '__constant' to object in address space"


def diagnostics(output: str) -> Iterator[Problem]:
    """What the front end says is wrong, without what Metal allows."""
    entries: list[tuple[Problem, list[Problem]]] = []
    for file, line, kind, message in DIAGNOSTIC.findall(output):
        found = Problem(file, int(line), message)
        if kind != "note":
            entries.append((found, []))
        elif entries:
            entries[-1][1].append(found)
    for problem, notes in entries:
        copies = any(COPY_OF_CONSTANT in note.message for note in notes)
        if copies and COPY_FAILS.match(problem.message):
            continue
        # A failed assertion of the library is a mistake of its caller, which a note names.
        callers = (n for n in (problem, *notes) if Path(n.file).parent != LIBRARY)
        at = next(callers, problem)
        yield Problem(at.file, at.line, problem.message)


def check_shader(path: Path, version: int) -> list[Problem]:
    """Problems of a shader under one version of the language.

    Raises:
        RuntimeError: the front end did not run.
    """
    macros = f"-D__METAL_VERSION__={version}"
    done = subprocess.run(
        [*CLANG, *PREPROCESS, macros, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        found = list(diagnostics(done.stderr))
        if not found:
            raise RuntimeError(f"{' '.join(CLANG)} failed:\n{done.stderr}")
        return found
    text, problems = translate(done.stdout, version)
    standard = () if version >= CXX17 else ("-Wpre-c++17-compat",)
    done = subprocess.run(
        [*CLANG, *CHECK, *standard, "-"], input=text, capture_output=True, text=True, check=False
    )
    problems += diagnostics(done.stderr)
    if done.returncode and "error:" not in done.stderr:
        raise RuntimeError(f"{' '.join(CLANG)} failed:\n{done.stderr}")
    return list(dict.fromkeys(problems))


def check_shaders(paths: list[Path]) -> dict[Problem, list[int]]:
    """Problems of shaders, each with the versions of the language it is one in."""
    tasks = [(path, version) for path in paths for version in VERSIONS]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda task: check_shader(*task), tasks)
    found: dict[Problem, list[int]] = {}
    for (_, version), problems in zip(tasks, results, strict=True):
        for problem in problems:
            versions = found.setdefault(problem, [])
            if version not in versions:
                versions.append(version)
    return found | {problem: list(VERSIONS) for problem in clashes(paths)}


def main() -> int:
    """Prints every problem of the shaders named; 1 if there is one, else 0."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("shaders", nargs="+", type=Path)
    found = check_shaders(parser.parse_args().shaders)
    for problem, versions in found.items():
        names = ", ".join(f"{version // 100}.{version // 10 % 10}" for version in versions)
        print(f"{problem} [MSL {names}]")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
