"""Writes metal/codebooks.h: the grids of the IQ formats, from the ``gguf`` package."""

from pathlib import Path

import numpy as np

from gguf import quants

OUT = Path(__file__).parent / "codebooks.h"
# Name -> class of gguf.quants. Each grid has entries of 8 or 4 values out of few.
GRIDS = {
    "IQ2_XXS": quants.IQ2_XXS,
    "IQ2_XS": quants.IQ2_XS,
    "IQ2_S": quants.IQ2_S,
    "IQ3_XXS": quants.IQ3_XXS,
    "IQ3_S": quants.IQ3_S,
    "IQ1": quants.IQ1_S,
}
HEAD = """\
// Grids of the IQ formats, written by metal/make_codebooks.py.
//
// An entry has the numbers of eight values, two bits each, or of four, three bits each, the first
// of them lowest. grid_codes.h says which values they are.
#pragma once

#include "common.h"

// clang-format off
"""


def entries(kind: type[quants.IQ2_XXS]) -> list[int]:
    """Each entry of a grid as one number of 16 bits."""
    kind.init_grid()
    grid = np.asarray(kind.grid).reshape(kind.grid_shape)
    order = sorted(kind.grid_map)
    n_bits = 2 if len(order) == 3 else 3
    return [
        sum(order.index(int(value)) << n_bits * i for i, value in enumerate(entry))
        for entry in grid
    ]


def header() -> str:
    """The text of the header."""
    parts = [HEAD]
    for name, kind in GRIDS.items():
        numbers = [f"0x{entry:x}," for entry in entries(kind)]
        lines = [f"\nDSV4_CONST uint16_t kGrid{name}[{len(numbers)}] = {{"]
        line = ""
        for number in numbers:
            if len(line) + len(number) > 96:
                lines.append(f"  {line}")
                line = ""
            line += number
        parts.append("\n".join([*lines, f"  {line}", "};", ""]))
    values = ",".join(str(value % 256) for value in quants.IQ4_NL.kvalues)
    parts.append(f"\n// int8 as bytes.\nDSV4_CONST uint8_t kIQ4Values[16] = {{{values}}};\n")
    return "".join(parts)


if __name__ == "__main__":
    OUT.write_text(header())
