"""Each check of a macOS wheel passes on a right one and fails on a wheel that is wrong in it."""

import shutil
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from check_wheel import check_wheel, report
from mach_o import DYLIB, X86_64, MachO, universal

ROOT = Path(__file__).parents[2]
TAG = "cp311-cp311-macosx_14_0_arm64"
NANOBIND = b"\0nanobind_system_libcpp_abi1_a1_v22\0mlx\0"
MLX = "@rpath/libmlx.dylib"
CXX = "/usr/lib/libc++.1.dylib"
DISPATCH = "__ZN3mlx4core5metal14CommandEncoder21dispatch_threadgroupsEN3MTL4SizeES4_"
SHADER = "#include <metal_stdlib>\n// A kernel family.\n"
TEXT = f'#line 1 "scale.metal"\n{SHADER}'.encode()
RIGHT = MachO(
    data=NANOBIND + TEXT,
    exports=("_PyInit__ext",),
    imports=((DISPATCH, MLX), ("___cxa_throw", CXX), ("_PyErr_SetString", "")),
    libraries=(MLX, CXX),
    rpaths=("@loader_path/../mlx/lib",),
)


@dataclass(frozen=True)
class Wheel:
    """A wheel and what it is checked against, made anew for every test."""

    module: MachO = RIGHT
    module_bytes: bytes | None = None  # in place of the module's own
    name: str = TAG
    tag: str = TAG
    module_name: str = "mlx_dsv4/_ext.cpython-311-darwin.so"
    mlx_version: str = "0.32.4"
    package_file: str = "mlx_dsv4/__init__.py"
    shader: str = "scale.metal"

    def failed(self, folder: Path) -> set[str]:
        """Names of the checks that fail."""
        mlx, source = folder / "mlx", folder / "source"
        (mlx / "lib").mkdir(parents=True)
        (mlx / "include/mlx").mkdir(parents=True)
        (mlx / "core.cpython-311-darwin.so").write_bytes(NANOBIND)
        library = MachO(data=b"code", exports=(DISPATCH,), kind=DYLIB)
        (mlx / "lib/libmlx.dylib").write_bytes(library.to_bytes())
        (mlx / "include/mlx/version.h").write_text(
            "".join(
                f"#define MLX_VERSION_{part} {number}\n"
                for part, number in (("MAJOR", 0), ("MINOR", 32), ("PATCH", 4))
            )
        )
        (source / "python/mlx_dsv4").mkdir(parents=True)
        (source / "python/mlx_dsv4/__init__.py").touch()
        (source / "metal").mkdir()
        shutil.copy(ROOT / "metal/embed_metal.py", source / "metal")
        (source / "metal" / self.shader).write_text(SHADER)
        (folder / "libc++.tbd").write_text("symbols: [ '___cxa_throw' ]")
        path = folder / f"mlx_dsv4-0.1.0-{self.name}.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(
                "mlx_dsv4-0.1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {self.tag}\n"
            )
            wheel.writestr("mlx_dsv4/_build_info.py", f'MLX_VERSION = "{self.mlx_version}"\n')
            wheel.writestr(self.package_file, "")
            wheel.writestr(self.module_name, self.module_bytes or self.module.to_bytes())
        checks = check_wheel(path, mlx, folder, source)
        assert report(checks) == int(not all(check.passed for check in checks))
        return {check.name for check in checks if not check.passed}


def module(**changes: Any) -> Wheel:
    return Wheel(module=replace(RIGHT, **changes))


def importing(*names: tuple[str, str]) -> Wheel:
    return module(imports=RIGHT.imports + names)


WITHOUT_MLX = tuple(entry for entry in RIGHT.imports if entry[1] != MLX)
WITHOUT_CXX = tuple(entry for entry in RIGHT.imports if entry[1] != CXX)
OTHER_TAG = "cp311-cp311-macosx_15_0_arm64"
FAT = universal((RIGHT.machine, RIGHT.to_bytes()), (X86_64, RIGHT.to_bytes()))

# What is wrong, and the checks that say so.
WRONG = {
    "made for a later macOS": (Wheel(name=OTHER_TAG, tag=OTHER_TAG), "platform-tag"),
    "another tag inside": (Wheel(tag=OTHER_TAG), "metadata-tag"),
    "a module of Linux's name": (
        Wheel(module_name="mlx_dsv4/_ext.cpython-311-x86_64-linux-gnu.so"),
        "module-name",
    ),
    "a Python file lost": (Wheel(package_file="other/__init__.py"), "package-files-missing"),
    "two architectures": (Wheel(module_bytes=FAT), "architectures signature"),
    "Intel": (module(machine=X86_64), "architecture"),
    "a library instead of a bundle": (module(kind=DYLIB), "file-type"),
    "code for a later macOS": (module(minimum=(15, 0)), "minimum-os"),
    "no MLX": (
        module(imports=WITHOUT_MLX, libraries=(CXX,)),
        "loads-mlx imports-from-mlx launches-kernels",
    ),
    "nothing from MLX": (module(imports=WITHOUT_MLX), "imports-from-mlx launches-kernels"),
    "a C++ runtime of its own": (
        module(imports=WITHOUT_CXX, libraries=(MLX,)),
        "loads-system-libc++ throws-through-system-libc++",
    ),
    "a library of the build machine": (
        module(libraries=(MLX, CXX, "/opt/homebrew/lib/libomp.dylib")),
        "foreign-libraries",
    ),
    "a search path of the build machine": (module(rpaths=("/work/mlx/lib",)), "rpath"),
    "functions left visible": (module(exports=("_PyInit__ext", "_route")), "exports"),
    "a function that MLX hides": (
        importing(("__ZN3mlx4core8copy_gpuEv", MLX)),
        "imports-not-in-mlx",
    ),
    "a function later than macOS 14": (
        importing(("__ZNSt3__113__hash_memoryEPKvm", CXX)),
        "imports-not-in-system",
    ),
    "a name that nobody provides": (importing(("_sgemm_", "")), "imports-not-in-python"),
    "another nanobind": (module(data=NANOBIND.replace(b"v22", b"v21") + TEXT), "nanobind-tag"),
    "nanobind's common domain": (
        module(data=NANOBIND.replace(b"\0mlx\0", b"\0\0") + TEXT),
        "nanobind-domain-mlx",
    ),
    "built for another MLX": (Wheel(mlx_version="0.32.3"), "mlx-version"),
    "no shaders": (Wheel(shader="scale.txt"), "shaders"),
    "another shader": (module(data=NANOBIND + TEXT[:-1]), "shaders-that-differ"),
    "no kernel launched": (
        module(imports=(("__ZN3mlx4core3addEv", MLX), *WITHOUT_MLX)),
        "imports-not-in-mlx launches-kernels",
    ),
    "unsigned": (module(signature=None), "signature"),
    "signed by a person": (module(signature=0), "signature"),
    "changed after signing": (module(extra=b"\1"), "signature-pages-damaged"),
}


def test_a_right_wheel_passes(tmp_path: Path) -> None:
    assert Wheel().failed(tmp_path) == set()


@pytest.mark.parametrize(("wheel", "checks"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_wheel_fails_in_what_is_wrong(wheel: Wheel, checks: str, tmp_path: Path) -> None:
    assert wheel.failed(tmp_path) == set(checks.split())


def test_every_check_can_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Wheel().failed(tmp_path)
    printed = capsys.readouterr().out.splitlines()
    names = {line.split()[1] for line in printed if line.startswith("ok")}
    assert names == {name for _, checks in WRONG.values() for name in checks.split()}


def test_a_wheel_with_two_modules_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"mlx_dsv4-0.1.0-{TAG}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("a.so", "")
        wheel.writestr("b.so", "")
    with pytest.raises(ValueError, match="must hold one extension module"):
        check_wheel(path, tmp_path, tmp_path, tmp_path)


def test_a_failed_check_says_what_was_expected(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    module(minimum=(15, 0)).failed(tmp_path)
    assert "FAIL  minimum-os: expected [14, 0], got [15, 0]" in capsys.readouterr().out
