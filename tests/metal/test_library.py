"""The ahead-of-time library is built where ``xcrun`` has a Metal compiler: a script stands in."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

METAL = Path(__file__).parents[2] / "metal"
PROJECT = """
cmake_minimum_required(VERSION 3.27)
project(library LANGUAGES NONE)
set(FAMILIES one two)
file(GLOB SHADER_HEADERS metal/*.h)
include(metal/library.cmake)
"""
# Records what it is asked, and makes the file after -o.
XCRUN = """#!/bin/sh
printf '%s\\n' "$*" >> "$XCRUN_LOG"
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then : > "$2"; fi
  shift
done
exit $XCRUN_STATUS
"""
TOOLS = str(Path(sys.executable).parent)
FLAGS = "-std=metal3.1 -mmacosx-version-min=14.0 -fno-fast-math -Wall -Wextra -DDSV4_EVERY_KERNEL"


class Build:
    """A CMake project with two shaders, on a machine with or without ``xcrun``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "xcrun.log"
        self.sources = folder / "metal"
        self.sources.mkdir()
        (folder / "CMakeLists.txt").write_text(PROJECT)
        for name in ("one.metal", "two.metal", "one.h"):
            (self.sources / name).touch()
        (self.sources / "library.cmake").write_text((METAL / "library.cmake").read_text())

    def add_xcrun(self) -> None:
        script = self.folder / "bin/xcrun"
        script.parent.mkdir()
        script.write_text(XCRUN)
        script.chmod(0o755)

    def run(self, *command: str, status: int = 0) -> str:
        environment = os.environ | {
            "PATH": os.pathsep.join((str(self.folder / "bin"), TOOLS, os.environ["PATH"])),
            "XCRUN_LOG": str(self.log),
            "XCRUN_STATUS": str(status),
        }
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout

    def configure(self, status: int = 0) -> str:
        said = self.run("cmake", "-G", "Ninja", "-S", ".", "-B", "build", status=status)
        (line,) = re.findall(r"Shaders: (.*)", said)
        return line

    def build(self) -> list[str]:
        """Builds; what ``xcrun`` was asked, without the order of independent commands."""
        self.log.unlink(missing_ok=True)
        self.run("cmake", "--build", "build")
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sorted(line.strip() for line in lines)


@pytest.fixture
def project(tmp_path: Path) -> Build:
    return Build(tmp_path)


def test_each_family_is_compiled_and_all_are_joined(project: Build) -> None:
    project.add_xcrun()
    assert project.configure() == "compiled ahead of time into mlx_dsv4.metallib"
    assert project.build() == [
        f"-sdk macosx metal {FLAGS} -c {project.sources}/one.metal -o one.air",
        f"-sdk macosx metal {FLAGS} -c {project.sources}/two.metal -o two.air",
        "-sdk macosx metallib one.air two.air -o mlx_dsv4.metallib",
    ]


def test_it_is_installed_beside_the_extension(project: Build) -> None:
    project.add_xcrun()
    project.configure()
    project.build()
    project.run("cmake", "--install", "build", "--prefix", "installed")
    assert (project.folder / "installed/mlx_dsv4/mlx_dsv4.metallib").exists()


def test_a_changed_header_compiles_every_family_again(project: Build) -> None:
    project.add_xcrun()
    project.configure()
    project.build()
    assert project.build() == []
    (project.sources / "one.h").write_text("// changed\n")
    assert len(project.build()) == 3


def test_a_compiler_that_is_not_installed_leaves_the_sources(project: Build) -> None:
    project.add_xcrun()
    assert project.configure(status=1).startswith("compiled on first use")
    assert project.build() == []


@pytest.mark.skipif(shutil.which("xcrun") is not None, reason="xcrun is installed")
def test_no_xcrun_leaves_the_sources(project: Build) -> None:
    assert project.configure().startswith("compiled on first use")
    assert project.build() == []
