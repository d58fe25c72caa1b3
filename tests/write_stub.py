"""Print or write the type stub of the compiled extension."""

import sys
from pathlib import Path

import mlx.core  # noqa: F401 - registers the array types that _ext needs
from nanobind.stubgen import StubGen

from mlx_dsv4 import _ext


def extension_stub() -> str:
    """The stub of ``mlx_dsv4._ext`` as nanobind generates it."""
    generator = StubGen(_ext)
    generator.put(_ext)
    return generator.get()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(extension_stub())
