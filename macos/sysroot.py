"""A stand-in for the macOS SDK, made on Linux from published packages.

It holds what the extension needs and nothing else:

- C, Objective-C runtime and C++ library headers, and the symbol stub of libSystem, from the
  ``ziglang`` wheel (Apple's open-source headers and LLVM's libc++);
- symbol stubs of libc++, libobjc and the frameworks from ``stubs/lib``, which list symbols that
  wheels published for macOS 14 import;
- the few CoreFoundation, CoreGraphics and IOSurface declarations that metal-cpp needs, from
  ``stubs/include``.
"""

import json
import os
import re
import shutil
import sysconfig
from pathlib import Path

STUBS = Path(__file__).parent / "stubs"
FRAMEWORKS = Path("System/Library/Frameworks")

# What Apple's own configuration of libc++ says: ABI 1, and availability by deployment target.
LIBCXX_CONFIGURATION = """\
#ifndef _LIBCPP___CONFIG_SITE
#define _LIBCPP___CONFIG_SITE
#define _LIBCPP_ABI_VERSION 1
#define _LIBCPP_ABI_NAMESPACE __1
#define _LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS 1
#define _LIBCPP_PSTL_BACKEND_SERIAL
#define _LIBCPP_HARDENING_MODE_DEFAULT 2
#endif
"""
# In place of including <__config_site>, zig defines its contents on the command line.
ZIG_MARK = "/* zig patch: instead of including __config_site, zig adds -D flags when compiling */"

# Where Linux's configuration of Python differs from macOS's in what the public headers read.
PYTHON_CONFIGURATION = """
#undef _POSIX_C_SOURCE
#undef _XOPEN_SOURCE
#undef _XOPEN_SOURCE_EXTENDED
#define _DARWIN_C_SOURCE 1
#undef HAVE_GCC_ASM_FOR_X87
#undef HAVE_GCC_ASM_FOR_X64
#undef PTHREAD_KEY_T_IS_COMPATIBLE_WITH_INT
#undef SIZEOF_LONG_DOUBLE
#define SIZEOF_LONG_DOUBLE 8
"""

SDK_SETTINGS = {
    "CanonicalName": "macosx15.1",
    "DisplayName": "macOS 15.1",
    "MinimalDisplayName": "15.1",
    "Version": "15.1",
    "MaximumDeploymentTarget": "15.1.99",
    "SupportedTargets": {"macosx": {"Archs": ["arm64"], "DefaultDeploymentTarget": "15.1"}},
    "DefaultProperties": {"PLATFORM_NAME": "macosx"},
}


def copy_headers(zig: Path, include: Path) -> None:
    """Copy the C headers and libc++, configured as on macOS."""
    shutil.copytree(zig / "libc/include/any-macos-any", include)
    cxx = include / "c++/v1"
    shutil.copytree(zig / "libcxx/include", cxx)
    shutil.copytree(zig / "libcxxabi/include", cxx, dirs_exist_ok=True)
    (cxx / "__config_site").write_text(LIBCXX_CONFIGURATION)
    patched = 0
    for header in (cxx / "__config", *(cxx / "__configuration").glob("*.h")):
        text = header.read_text()
        patched += text.count(ZIG_MARK)
        header.write_text(text.replace(ZIG_MARK, "#include <__config_site>"))
    if not patched:
        raise ValueError(f"libc++ of ziglang must carry zig's patch mark; none in {cxx}")


def copy_libraries(zig: Path, root: Path) -> None:
    """Place symbol stubs at their install names, where lld looks up re-exported libraries."""
    libraries = root / "usr/lib"
    libraries.mkdir(parents=True)
    shutil.copy(zig / "libc/darwin/libSystem.tbd", libraries)
    for part in ("libc", "libdl", "libm", "libpthread"):
        (libraries / f"{part}.tbd").symlink_to("libSystem.tbd")
    for stub in sorted((STUBS / "lib").rglob("*.tbd")):
        name = re.search(r"install-name: '/([^']+)'", stub.read_text())
        if name is None:
            raise ValueError(f"{stub} must have an install-name")
        placed = root / (name[1].removesuffix(".dylib") + ".tbd")
        placed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(stub, placed)
        framework = stub.parent.suffix == ".framework"
        short = root / FRAMEWORKS / stub.parent.name if framework else libraries
        (short / stub.name).symlink_to(os.path.relpath(placed, short))


def make_sysroot(zig: Path, root: Path) -> None:
    """Lay out the SDK in the folder ``root``, whole or not at all.

    Args:
        zig: The folder ``ziglang/lib`` of the unpacked wheel of release 0.14.1; later ones list no
            ``arm64-macos`` in their libSystem stub.
        root: The folder to make.
    """
    partial = root.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    copy_headers(zig, partial / "usr/include")
    copy_libraries(zig, partial)
    for framework in sorted((STUBS / "include").iterdir()):
        headers = partial / FRAMEWORKS / f"{framework.name}.framework/Headers"
        headers.parent.mkdir(exist_ok=True)
        shutil.copytree(framework, headers)
    (partial / "SDKSettings.json").write_text(json.dumps(SDK_SETTINGS, indent=2))
    partial.rename(root)


def make_python_headers(folder: Path) -> None:
    """Copy the headers of the running Python, configured as on arm64 macOS."""
    partial = folder.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(sysconfig.get_path("include"), partial)
    configuration = Path(sysconfig.get_config_h_filename()).read_text()
    (partial / "pyconfig.h").write_text(configuration + PYTHON_CONFIGURATION)
    partial.rename(folder)
