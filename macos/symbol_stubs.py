"""Adds to the symbol stubs of macOS libraries what published wheels import from them.

``python symbol_stubs.py WHEEL...`` reads wheels for macOS 14 or earlier. A symbol is listed when
such a wheel binds it: linking against the stubs then shows that every symbol the extension needs
is known to be there on macOS 14. The functions of ``std::string`` are listed from LLVM's list of
libc++'s ABI on arm64 macOS (release 15, libcxx/lib/abi): compilers differ in what they inline.
"""

import argparse
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import lief

from check_wheel import loaded_libraries

STUBS = Path(__file__).parent / "stubs/lib"
NEWEST_MACOS = 14
WEAK = 0x40  # N_WEAK_REF of the symbol's description: may be absent
FLAT_LOOKUP = 0xFD  # ordinals from here on name no library
OBJC_CLASS = "_OBJC_CLASS_$_"


def images(wheel: Path) -> Iterator[lief.MachO.Binary]:
    """The arm64 images in a wheel that run on the macOS the stubs are for."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            content = archive.read(member)
            if content[:4] not in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"):
                continue
            parsed = lief.MachO.parse(list(content))  # owns the images
            for image in parsed or ():
                arm64 = image.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
                version = image.build_version
                if arm64 and version is not None and version.minos[0] <= NEWEST_MACOS:
                    yield image


def imports(image: lief.MachO.Binary) -> Iterator[tuple[str, str]]:
    """Pairs (install name of a library, symbol bound from it)."""
    libraries = loaded_libraries(image)
    for symbol in image.imported_symbols:
        ordinal = symbol.description >> 8
        if 0 < ordinal < FLAT_LOOKUP and not symbol.description & WEAK:
            yield libraries[ordinal - 1], str(symbol.name)


def listed(text: str, key: str) -> set[str]:
    """Names in the list ``key`` of a stub."""
    found = re.search(rf"\b{key}: \[([^\]]*)\]", text)
    return {name.strip(" '\n") for name in found[1].split(",")} if found else set()


def with_symbols(text: str, symbols: set[str]) -> str:
    """The text of a stub that lists these symbols too."""
    classes = {name.removeprefix(OBJC_CLASS) for name in symbols if name.startswith(OBJC_CLASS)}
    classes |= listed(text, "objc-classes")
    plain = {name for name in symbols if not name.startswith("_OBJC_")} | listed(text, "symbols")
    head = text.split("exports:")[0].removesuffix("...\n")
    names = ",\n      ".join(f"'{name}'" for name in sorted(plain))
    body = f"exports:\n  - targets: [ arm64-macos ]\n    symbols: [ {names} ]\n" if plain else ""
    if classes:
        quoted = ", ".join(f"'{name}'" for name in sorted(classes))
        body += f"    objc-classes: [ {quoted} ]\n"
    return f"{head}{body}...\n"


def main() -> None:
    """Extends the stubs from the wheels named."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("wheels", nargs="+", type=Path)
    found: dict[str, set[str]] = defaultdict(set)
    for wheel in parser.parse_args().wheels:
        for image in images(wheel):
            for library, symbol in imports(image):
                found[library].add(symbol)
    for stub in sorted(STUBS.rglob("*.tbd")):
        text = stub.read_text()
        name = re.search(r"install-name: '([^']+)'", text)
        extended = with_symbols(text, found[name[1]] if name else set())
        added = len(listed(extended, "symbols")) - len(listed(text, "symbols"))
        stub.write_text(extended)
        print(f"{stub.name}: {added} symbols added")


if __name__ == "__main__":
    main()
