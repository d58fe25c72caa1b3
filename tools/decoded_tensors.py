"""What the tensors of a GGUF file stand for, by the ``gguf`` package."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.gguf import GGUFFile, dequantize


def decoded_tensors(path: Path) -> dict[str, NDArray[np.generic]]:
    """GGUF name to float32 or int32 array, outer dimension first, owning its memory."""
    with GGUFFile(path) as file:
        return {
            name: file.raw(name).view(np.int32).reshape(info.shape).copy()
            if info.format == "i32"
            else dequantize(file.raw(name), info.format, info.shape)
            for name, info in file.tensors.items()
        }
