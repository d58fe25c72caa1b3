"""Writes the pack: what the machine with the GPU lacks, and cubins, so that it compiles nothing."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

from mslsim.cuda import cubin, kernels_in, packed_name
from tools.gpu_check.bugs import BUGS, ROOT
from tools.gpu_check.checkout import digests

# What the kernels' tests import, but NumPy, which is there.
WHEELS = (
    *("mlx==0.32.4", "mlx-cpu==0.32.4", "gguf", "xxhash", "tqdm", "pyyaml", "tokenizers"),
    *("pytest", "pluggy", "iniconfig", "packaging", "pygments"),
    *("hypothesis", "sortedcontainers", "attrs"),
)
# Of the version that the other machine has.
PYTHON = os.environ.get("TARGET_PYTHON", "python3.12")


def pack(target: Path) -> None:
    """Builds the package with TARGET_PYTHON, compiles the cubins, and writes both into one file."""
    folder = target.parent / "pack"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sources = digests(ROOT)
    unpack_wheels(folder / "site")
    names = write_cubins(folder / "cubins", folder / "bugs")
    facts = {"commit": commit(), "packed": now(), "kernels": names, "sources": sources}
    (folder / "pack.json").write_text(json.dumps(facts, indent=1))
    with tarfile.open(target, "w:xz") as tar:
        tar.add(folder, ".")
    shutil.rmtree(folder)
    n_kernels = sum(map(len, names.values()))
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB, {n_kernels} kernels")


def unpack_wheels(site: Path) -> None:
    """The package with the simulator's launch code, and what it and its tests need."""
    wheels = site.with_name("wheels")
    pip("wheel", "--no-deps", "-w", wheels, "-C", "cmake.define.DSV4_SIMULATOR=ON", ".")
    pip("download", "--no-deps", "--only-binary=:all:", "-d", wheels, *WHEELS)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    shutil.rmtree(wheels)


def write_cubins(cubins: Path, bugs: Path) -> dict[str, list[str]]:
    """The cubin of each family, and of each broken one; the kernels in each."""
    sys.path[:0] = [str(ROOT / "metal"), str(ROOT / "tests")]
    kernels: Any = import_module("cuda_kernels")
    flatten = import_module("embed_metal").flatten
    cubins.mkdir()
    names = {}

    def write(family: str, text: str | None = None) -> list[str]:
        source, name = kernels.family_source(family, text), f"{family}.metal"
        made = cubin(source, name)
        shutil.copyfile(made, cubins / packed_name(source, name))
        return kernels_in(made)

    for family in kernels.families():
        names[family] = write(family)
        print(f"{family}: {len(names[family])} kernels", flush=True)
    for bug in BUGS:
        shaders = bugs / bug.name
        bug.plant(shaders)
        write(bug.family(), flatten(shaders / f"{bug.family()}.metal"))
    return names


def pip(*arguments: str | Path) -> None:
    """Runs pip of the Python that the pack is for."""
    subprocess.run([PYTHON, "-m", "pip", "-q", *map(str, arguments)], cwd=ROOT, check=True)


def commit() -> str:
    """The commit of the working tree, and whether it was changed since."""
    return output("git", "describe", "--always", "--dirty", "--abbrev=12")


def output(*command: str) -> str:
    """What a program prints."""
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def now() -> str:
    """The time, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
