"""The cubins of this package's shaders: one per kernel family, with every kernel that is used.

A family's cubin holds the kernels that are built ahead of time and those of ``cuda_kernels.txt``.
"""

from collections.abc import Iterator
from pathlib import Path

from embed_metal import flatten

SHADERS = Path(__file__).parents[1] / "metal"
# csrc/metal_library.cpp writes it between a family's text and the kernel that is asked for.
MARKER = '#line 1 "instantiation"\n'
MORE_KERNELS = Path(__file__).with_name("cuda_kernels.txt")


def families() -> list[str]:
    """The families of kernels."""
    return sorted(path.stem for path in SHADERS.glob("*.metal"))


def split_library(source: str) -> tuple[str, str, str]:
    """Family, text and instantiation of a library; no family where it is no kernel of ours."""
    text, marker, instantiation = source.rpartition(MARKER)
    if not marker:
        return "", source, ""
    family = text.split('"', 2)[1].removesuffix(".metal")  # of the first #line
    return family, text, marker + instantiation


def more_kernels(family: str) -> Iterator[tuple[str, str]]:
    """Host names and functions of a family's kernels that are not built ahead of time."""
    for line in MORE_KERNELS.read_text().splitlines():
        of, _, function = line.partition(": ")
        if of == family:
            name = function.rstrip(">").replace("<", "_").replace(", ", "_")
            yield name, function


def family_source(family: str, text: str | None = None) -> str:
    """The shader of a family, or a text in its place, with every kernel that is used."""
    from mslsim.library import instantiation

    text = flatten(SHADERS / f"{family}.metal") if text is None else text
    more = "".join(instantiation(*kernel) for kernel in more_kernels(family))
    return f"#define DSV4_EVERY_KERNEL\n{text}{more}"


def family_cubin(family: str, text: str | None = None, architecture: str | None = None) -> Path:
    """The cubin of a family, or of a text in the place of its shader."""
    from mslsim.cuda import ARCHITECTURE, cubin

    source = family_source(family, text)
    return cubin(source, f"{family}.metal", architecture or ARCHITECTURE)
