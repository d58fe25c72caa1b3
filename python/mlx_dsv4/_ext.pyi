from collections.abc import Sequence

import mlx.core

__mlx_version__: str = "0.32.4"

__nanobind_version__: str = "3.1.0"

def uninitialized(shape: Sequence[int], dtype: mlx.core.Dtype) -> mlx.core.array: ...
def isa() -> str: ...
def set_isa(name: str) -> None: ...
def available_isas() -> list[str]: ...
def num_threads() -> int: ...
def set_num_threads(n: int) -> None: ...
def data_pointer(a: mlx.core.array) -> int: ...

class MappedFile:
    def __init__(self, path: str) -> None: ...
    @property
    def size(self) -> int: ...
    def view(self, offset: int, shape: Sequence[int]) -> mlx.core.array: ...

def route_scored(
    logits: mlx.core.array,
    bias: mlx.core.array,
    *,
    k: int,
    scale: float,
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None = None,
) -> tuple[mlx.core.array, mlx.core.array]: ...
def route_hashed(
    logits: mlx.core.array,
    tokens: mlx.core.array,
    table: mlx.core.array,
    *,
    scale: float,
    stream: mlx.core.Stream
    | mlx.core.ThreadLocalStream
    | mlx.core.Device
    | mlx.core.DeviceType
    | None = None,
) -> tuple[mlx.core.array, mlx.core.array]: ...
