"""Builds the wheel for arm64 macOS on Linux and checks it: ``make wheel-macos``.

Compiles with clang-19 against the macOS wheels of MLX and a stand-in SDK, links against the real
``libmlx.dylib``, and runs every check of check_wheel.py on the result. What that shows, and what
only a Mac can show, is in docs/macos.md.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from check_wheel import MACOS, check_wheel, report
from sysroot import STUBS, make_python_headers, make_sysroot

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/macos"
ZIG_VERSION = "0.14.1"  # its headers; the last whose libSystem stub lists arm64-macos

PROGRAMS = {
    "clang++-19": "clang-19",
    "ld64.lld-19": "lld-19",
    "llvm-ar-19": "llvm-19",
    "llvm-strip-19": "llvm-19",
}


def missing_packages() -> list[str]:
    """Debian's packages that the build needs and this machine lacks."""
    return sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})


def mlx_version() -> str:
    """The release of MLX that the project is built with."""
    pin = re.search(r'"mlx==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    if pin is None:
        raise ValueError("pyproject.toml must pin mlx")
    return pin[1]


def download(folder: Path, *options: str) -> Path:
    """Unpack wheels of the package index into a folder, once.

    Args:
        folder: Where their contents go.
        options: What ``pip download`` is asked for.
    """
    if not folder.exists():
        wheels = folder.with_name(folder.name + ".wheels")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(wheels), *options], check=True)
        unpacked = folder.with_name(folder.name + ".part")
        shutil.rmtree(unpacked, ignore_errors=True)
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(unpacked)
        unpacked.rename(folder)
    return folder


def download_mlx() -> Path:
    """The folder ``mlx`` of the macOS wheels of MLX, for the running Python."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    version = mlx_version()
    folder = download(
        BUILD / f"mlx-{version}-{python}",
        *("--only-binary=:all:", "--python-version", python),
        *("--platform", f"macosx_{MACOS[0]}_{MACOS[1]}_arm64"),
        *(f"mlx=={version}", f"mlx-metal=={version}"),
    )
    return folder / "mlx"


def prepare_sysroot() -> Path:
    """The stand-in SDK; made once, because what is compiled depends on its files."""
    parts = [Path(__file__).with_name("sysroot.py"), *sorted(STUBS.rglob("*.*"))]
    texts = b"".join(part.read_bytes() for part in parts if part.is_file())
    sysroot = BUILD / f"MacOSX-{hashlib.sha256(texts).hexdigest()[:16]}.sdk"
    if not sysroot.exists():
        zig = download(BUILD / f"zig-{ZIG_VERSION}", f"ziglang=={ZIG_VERSION}") / "ziglang/lib"
        make_sysroot(zig, sysroot)
    return sysroot


def prepare_python_headers() -> Path:
    """The headers of the running Python as on macOS; made once."""
    headers = BUILD / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not headers.exists():
        make_python_headers(headers)
    return headers


def build(mlx: Path, sysroot: Path, headers: Path, destination: Path) -> Path:
    """Build the wheel with the toolchain file; returns its path."""
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    target = f"{MACOS[0]}.{MACOS[1]}"
    definitions = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "macos/toolchain.cmake",
        "CMAKE_OSX_SYSROOT": sysroot,
        "CMAKE_OSX_DEPLOYMENT_TARGET": target,
        "CMAKE_COMPILE_WARNING_AS_ERROR": "ON",
        "MLX_ROOT": mlx,
        "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": headers,
    }
    settings = [f"cmake.define.{name}={value}" for name, value in definitions.items()]
    settings += ["cmake.python-hints=false", f"build-dir={BUILD / f'cp{version}'}"]
    environment = os.environ | {
        "_PYTHON_HOST_PLATFORM": f"macosx-{target}-arm64",  # the tag of the wheel
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{version}-darwin.so",
        "MACOSX_DEPLOYMENT_TARGET": target,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    made = BUILD / "wheel"
    shutil.rmtree(made, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--wheel-dir", str(made)]
    for setting in settings:
        command += ["--config-settings", setting]
    subprocess.run([*command, str(ROOT)], check=True, env=environment)
    (wheel,) = made.glob("*.whl")
    destination.mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, destination))


def main() -> int:
    """Builds ``dist/mlx_dsv4-*-macosx_14_0_arm64.whl`` and checks it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--missing", action="store_true", help="print the packages to install")
    given = parser.parse_args()
    packages = " ".join(missing_packages())
    if given.missing:
        print(packages)
        return 0
    if packages:
        print(f"the build for macOS needs: apt-get install {packages}", file=sys.stderr)
        return 1
    BUILD.mkdir(parents=True, exist_ok=True)
    mlx = download_mlx()
    sysroot, headers = prepare_sysroot(), prepare_python_headers()
    wheel = build(mlx, sysroot, headers, given.dist)
    print(f"== checking {wheel.relative_to(ROOT) if wheel.is_relative_to(ROOT) else wheel}")
    return report(check_wheel(wheel, mlx, sysroot, ROOT))


if __name__ == "__main__":
    sys.exit(main())
