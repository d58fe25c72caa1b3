"""Static checks of a wheel for arm64 macOS: what dyld, MLX and pip would refuse on a Mac.

``python check_wheel.py WHEEL --mlx FOLDER --sysroot FOLDER --source FOLDER`` prints one line per
check, and for a failing one what was expected and what is there; the exit code is then 1.
"""

import argparse
import re
import runpy
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import lief

from code_signature import damaged_pages, signature_flags

MACOS = (14, 0)  # the lowest release the wheel is for

ORDINAL_FLAT = 254  # looked up in every loaded image, as Python's own functions are
SYSTEM_FOLDERS = ("/usr/lib/", "/System/Library/")
MLX_LIBRARY = "@rpath/libmlx.dylib"
CXX_LIBRARY = "/usr/lib/libc++.1.dylib"
NANOBIND_TAG = re.compile(rb"nanobind_[a-z0-9_]+_v\d+(?:_stable)?")


@dataclass(frozen=True)
class Check:
    """One property of the wheel.

    Attributes:
        name: What is checked, in hyphens.
        expected: What it must be.
        got: What it is.
    """

    name: str
    expected: object
    got: object

    @property
    def passed(self) -> bool:
        """Whether the wheel has the property."""
        return self.expected == self.got


@dataclass(frozen=True)
class Wheel:
    """A wheel and the one extension module in it."""

    path: Path
    members: tuple[str, ...]
    tags: tuple[str, ...]  # lines of its WHEEL file
    build_info: str
    module_path: str
    module: bytes

    @classmethod
    def read(cls, path: Path) -> "Wheel":
        """Read a wheel file.

        Raises:
            ValueError: it does not hold exactly one ``.so``.
        """
        with zipfile.ZipFile(path) as archive:
            members = tuple(archive.namelist())
            modules = [name for name in members if name.endswith(".so")]
            if len(modules) != 1:
                raise ValueError(f"{path} must hold one extension module; got {modules}")
            (metadata,) = (name for name in members if name.endswith(".dist-info/WHEEL"))
            lines = archive.read(metadata).decode().splitlines()
            return cls(
                path=path,
                members=members,
                tags=tuple(line.removeprefix("Tag: ") for line in lines if line[:5] == "Tag: "),
                build_info=archive.read("mlx_dsv4/_build_info.py").decode(),
                module_path=modules[0],
                module=archive.read(modules[0]),
            )

    @property
    def tag(self) -> str:
        """The tag in the file name: ``cp311-cp311-macosx_14_0_arm64``."""
        return "-".join(self.path.stem.split("-")[-3:])

    @cached_property
    def images(self) -> lief.MachO.FatBinary:
        """The parsed module, one image per architecture."""
        parsed = lief.MachO.parse(list(self.module))
        if parsed is None:
            raise ValueError(f"{self.module_path} must be a Mach-O file")
        return parsed

    @property
    def image(self) -> lief.MachO.Binary:
        """The first image of the module."""
        image = self.images.at(0)
        assert image is not None
        return image


def loaded_libraries(image: lief.MachO.Binary) -> list[str]:
    """Install names of the libraries that an image loads; ordinal n is the n-th."""
    own_name = lief.MachO.LoadCommand.TYPE.ID_DYLIB
    return [str(library.name) for library in image.libraries if library.command != own_name]


def exported_symbols(library: Path) -> frozenset[str]:
    """Names that a Mach-O library exports."""
    parsed = lief.MachO.parse(str(library))
    image = parsed.at(0) if parsed else None
    if image is None:
        raise ValueError(f"{library} must be a Mach-O file")
    return frozenset(str(symbol.name) for symbol in image.exported_symbols)


def stub_symbols(sysroot: Path) -> frozenset[str]:
    """Names listed by the symbol stubs of a stand-in SDK."""
    names: set[str] = set()
    for stub in sysroot.rglob("*.tbd"):
        text = re.sub(r"\s+", " ", stub.read_text())
        for listed in re.findall(r"(?:weak-|thread-local-)?symbols: \[([^\]]*)\]", text):
            names.update(name.strip(" '\"") for name in listed.split(","))
    return frozenset(names)


def package_checks(wheel: Wheel, source: Path) -> Iterator[Check]:
    """What pip reads: the file name, the metadata, the package's files."""
    python, _, platform = wheel.tag.split("-")
    yield Check("platform-tag", f"macosx_{MACOS[0]}_{MACOS[1]}_arm64", platform)
    yield Check("metadata-tag", (wheel.tag,), wheel.tags)
    module = f"mlx_dsv4/_ext.cpython-{python.removeprefix('cp')}-darwin.so"
    yield Check("module-name", module, wheel.module_path)
    package = source / "python"
    files = (str(path.relative_to(package)) for path in sorted(package.rglob("*.py")))
    missing = [name for name in files if name not in wheel.members]
    yield Check("package-files-missing", [], missing)


def image_checks(wheel: Wheel) -> Iterator[Check]:
    """What dyld reads first: kind, architecture, minimum release, libraries, search path."""
    image = wheel.image
    libraries = loaded_libraries(image)
    yield Check("architectures", 1, wheel.images.size)
    yield Check("architecture", "ARM64", image.header.cpu_type.name)
    yield Check("file-type", "BUNDLE", image.header.file_type.name)
    minimum = image.build_version.minos[:2] if image.build_version else None
    yield Check("minimum-os", list(MACOS), minimum)
    yield Check("loads-mlx", True, MLX_LIBRARY in libraries)
    yield Check("loads-system-libc++", True, CXX_LIBRARY in libraries)
    foreign = [n for n in libraries if not n.startswith(SYSTEM_FOLDERS) and n != MLX_LIBRARY]
    yield Check("foreign-libraries", [], foreign)
    yield Check("rpath", ["@loader_path/../mlx/lib"], [str(path.path) for path in image.rpaths])


def symbol_checks(wheel: Wheel, mlx: Path, sysroot: Path) -> Iterator[Check]:
    """What dyld binds: every import must be exported where it is looked for."""
    image = wheel.image
    exported = [str(symbol.name) for symbol in image.exported_symbols]
    yield Check("exports", ["_PyInit__ext"], exported)

    libraries = loaded_libraries(image)
    from_mlx, from_system, flat = set(), set(), set()
    for symbol in image.imported_symbols:
        ordinal = symbol.description >> 8
        if ordinal == ORDINAL_FLAT:
            flat.add(str(symbol.name))
        elif libraries[ordinal - 1] == MLX_LIBRARY:
            from_mlx.add(str(symbol.name))
        else:
            from_system.add(str(symbol.name))
    yield Check("imports-from-mlx", True, bool(from_mlx))
    # With a C++ runtime of its own, exceptions and type information would not cross to MLX.
    yield Check("throws-through-system-libc++", True, "___cxa_throw" in from_system)
    mlx_exports = exported_symbols(mlx / "lib/libmlx.dylib")
    yield Check("imports-not-in-mlx", [], sorted(from_mlx - mlx_exports))
    yield Check("imports-not-in-system", [], sorted(from_system - stub_symbols(sysroot)))
    not_python = sorted(name for name in flat if not name.startswith(("_Py", "__Py")))
    yield Check("imports-not-in-python", [], not_python)


def mlx_checks(wheel: Wheel, mlx: Path) -> Iterator[Check]:
    """What lets the module exchange arrays with mlx.core."""
    (core,) = mlx.glob("core.cpython-*.so")
    theirs = sorted(set(NANOBIND_TAG.findall(core.read_bytes())))
    yield Check("nanobind-tag", theirs, sorted(set(NANOBIND_TAG.findall(wheel.module))))
    yield Check("nanobind-domain-mlx", True, b"\0mlx\0" in wheel.module)
    header = (mlx / "include/mlx/version.h").read_text()
    version = ".".join(re.findall(r"#define MLX_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
    built_for = re.search(r'MLX_VERSION = "([^"]*)"', wheel.build_info)
    yield Check("mlx-version", version, built_for[1] if built_for else None)


def shader_checks(wheel: Wheel, source: Path) -> Iterator[Check]:
    """That the module carries every shader's text and the code that launches kernels."""
    shader_source = runpy.run_path(str(source / "metal/embed_metal.py"))["shader_source"]
    families = sorted(path.stem for path in source.glob("metal/*.metal"))
    texts = {family: shader_source(source / "metal", family).text for family in families}
    differing = [name for name, text in texts.items() if text.encode() not in wheel.module]
    yield Check("shaders", True, bool(families))
    yield Check("shaders-that-differ", [], differing)
    imported = " ".join(str(symbol.name) for symbol in wheel.image.imported_symbols)
    yield Check("launches-kernels", True, "CommandEncoder21dispatch_threadgroups" in imported)


def signature_checks(wheel: Wheel) -> Iterator[Check]:
    """What the kernel of macOS checks as it maps pages: unsigned arm64 code is killed."""
    yield Check("signature", "ad hoc", signature_flags(wheel.image, wheel.module))
    yield Check("signature-pages-damaged", [], damaged_pages(wheel.image, wheel.module))


def check_wheel(path: Path, mlx: Path, sysroot: Path, source: Path) -> list[Check]:
    """All checks of one wheel.

    Args:
        path: The wheel.
        mlx: The folder ``mlx`` of the macOS wheels ``mlx`` and ``mlx-metal``.
        sysroot: The stand-in SDK whose stubs list the symbols of the system.
        source: The project's folder, whose modules and shaders the wheel must carry.
    """
    wheel = Wheel.read(path)
    return [
        *package_checks(wheel, source),
        *image_checks(wheel),
        *symbol_checks(wheel, mlx, sysroot),
        *mlx_checks(wheel, mlx),
        *shader_checks(wheel, source),
        *signature_checks(wheel),
    ]


def report(checks: list[Check]) -> int:
    """Print every check; 1 if one failed, else 0."""
    for check in checks:
        if check.passed:
            print(f"ok    {check.name}")
        else:
            print(f"FAIL  {check.name}: expected {check.expected}, got {check.got}")
    failed = sum(not check.passed for check in checks)
    print(f"{len(checks)} checks, {failed} failed")
    return int(failed > 0)


def main() -> int:
    """Checks a wheel for arm64 macOS."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--mlx", type=Path, required=True)
    parser.add_argument("--sysroot", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    given = parser.parse_args()
    return report(check_wheel(given.wheel, given.mlx, given.sysroot, given.source))


if __name__ == "__main__":
    sys.exit(main())
