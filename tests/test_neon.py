"""The NEON kernels compile for arm64 macOS; they run where an arm64 machine runs the suite."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNELS = sorted((ROOT / "csrc").glob("*_cpu.cpp"))


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_kernels_compile_for_arm64_macos(source: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "kernel.o"
    command = [
        *(sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-macos"),
        *("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off"),
        *("-DDSV4_ISA=neon", '-DDSV4_SIMD_HEADER="simd_neon.h"'),
        *("-c", str(source), "-o", str(compiled)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert compiled.read_bytes()[:4] == b"\xcf\xfa\xed\xfe"  # a 64-bit Mach-O object
