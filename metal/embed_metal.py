"""Shader sources as the extension carries them: one text per kernel family.

Metal compiles the text at run time, where there is no folder to include from, so every
``#include "..."`` is replaced by the file; ``#line`` keeps the compiler's messages on the
files they are about.
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
LITERAL_BYTES = 8000  # compilers bound the length of one literal


@dataclass(frozen=True)
class ShaderSource:
    """One family's shader, with its includes in place.

    Attributes:
        family: Name of the kernel family.
        text: The source; ASCII, because MLX hands it to Metal as such.
        built_ahead: Host names of the kernels that the ahead-of-time library holds.
    """

    family: str
    text: str
    built_ahead: tuple[str, ...]

    @property
    def hash(self) -> str:
        """FNV-1a of the text, 16 hexadecimal digits."""
        value = FNV_OFFSET
        for byte in self.text.encode():
            value = ((value ^ byte) * FNV_PRIME) % 2**64
        return f"{value:016x}"


def flatten(path: Path, seen: set[Path] | None = None) -> str:
    """The text of a shader with each ``#include "..."`` replaced by the file, once.

    Raises:
        FileNotFoundError: an included file is not beside the one that names it.
        ValueError: a character is not ASCII.
    """
    seen = set() if seen is None else seen
    seen.add(path.resolve())
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.isascii():
            raise ValueError(f"{path}:{number} must be ASCII; got {line!r}")
        include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if include is None:
            lines.append("" if line.strip() == "#pragma once" else line)
            continue
        included = path.parent / include[1]
        if included.resolve() not in seen:
            lines += [flatten(included, seen).rstrip("\n"), f'#line {number + 1} "{path.name}"']
        else:
            lines.append("")
    return "\n".join(lines) + "\n"


def shader_source(folder: Path, family: str) -> ShaderSource:
    """The shader of a kernel family in a folder of ``.metal`` files."""
    path = folder / f"{family}.metal"
    text = path.read_text()
    instantiated = re.findall(r"^instantiate_kernel\((\w+), (\w+),", text, re.MULTILINE)
    plain = re.findall(r"^\[\[kernel\]\] void (\w+)\(", text, re.MULTILINE)
    names = [f"{function}_{suffix}" for function, suffix in instantiated]
    # The macro in common.h is not a line of the family's own.
    templated = re.findall(r"^template <[^\n]*>\n\[\[kernel\]\] void (\w+)\(", text, re.MULTILINE)
    names += [function for function in plain if function not in templated]
    return ShaderSource(family, flatten(path), tuple(sorted(names)))


def header(sources: list[ShaderSource]) -> str:
    """The C++ header that holds the sources."""
    entries = []
    for source in sources:
        pieces = [
            source.text[at : at + LITERAL_BYTES] for at in range(0, len(source.text), LITERAL_BYTES)
        ]
        literal = "\n".join(f'R"MSL~({piece})MSL~"' for piece in pieces)
        names = " ".join(source.built_ahead)
        entries.append(f'{{"{source.family}", "{source.hash}", "{names}",\n{literal}}}')
    return (
        "#pragma once\n\nnamespace mlx_dsv4 {\n\n"
        "struct ShaderSource {\n  const char* family;\n  const char* hash;\n"
        "  const char* built_ahead;\n  const char* text;\n};\n\n"
        "inline constexpr ShaderSource kShaderSources[] = {\n"
        + ",\n".join(entries)
        + "};\n\n}  // namespace mlx_dsv4\n"
    )


def main() -> None:
    """Writes the header for the families named."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("families", nargs="+")
    arguments = parser.parse_args()
    folder = Path(__file__).parent
    text = header([shader_source(folder, family) for family in arguments.families])
    arguments.out.write_text(text)


if __name__ == "__main__":
    main()
