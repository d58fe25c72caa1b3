"""What the kernels run on."""

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from mlx_dsv4 import _ext
from mlx_dsv4.errors import DeviceError

# Raised by whatever changes a bit of what a kernel computes: rows saved before are refused then.
ARITHMETIC = 1

DeviceChoice = Literal["auto", "cpu", "gpu"]


@dataclass(frozen=True)
class CpuKernels:
    """Instruction set and number of threads of the CPU kernels.

    Attributes:
        isa: Name of the instruction set, e.g. ``"avx2"``.
        threads: Threads that share one call.
    """

    isa: str
    threads: int


def cpu_kernels() -> CpuKernels:
    """What the CPU kernels run with in this process."""
    return CpuKernels(_ext.isa(), _ext.num_threads())


def read_all(words: mx.array) -> int:
    """Read every byte once, on all threads, and do nothing else: for measuring bandwidth.

    Args:
        words: Evaluated uint32 of any shape, row-contiguous, a multiple of 64 elements.

    Returns:
        The sum of the words modulo 2^32.

    Raises:
        ValueError: ``words`` is something else.
    """
    return _ext.read_all(words)


def multiply_adds(rounds: int) -> int:
    """Keep the multiply-add units of all threads busy, without memory: for measuring FLOP/s.

    Args:
        rounds: Of independent float32 multiply-adds on each thread.

    Returns:
        Multiply-adds done, of one lane each.

    Raises:
        ValueError: ``rounds`` is below 1.
    """
    return _ext.multiply_adds(rounds)


def widened_multiply_adds(rounds: int) -> int:
    """The same with bfloat16 factors, as kernels meet them: loaded, widened, used once.

    Args:
        rounds: Of independent multiply-adds on each thread, with float32 sums.

    Returns:
        Multiply-adds done, of one lane each.

    Raises:
        ValueError: ``rounds`` is below 1.
    """
    return _ext.widened_multiply_adds(rounds)


def kernel_device(choice: DeviceChoice = "auto") -> mx.Device:
    """The device to run kernels on.

    Args:
        choice: ``"auto"`` is the GPU where this build has kernels for it, else the CPU.

    Raises:
        ValueError: ``choice`` is something else.
        DeviceError: ``"gpu"``, and this build or machine has no Metal.
    """
    if choice not in ("auto", "cpu", "gpu"):
        raise ValueError(f"device must be auto, cpu or gpu; got {choice}")
    there = _ext.has_gpu_kernels() and mx.metal.is_available()
    if choice == "gpu" and not there:
        raise DeviceError(
            f"device must be auto or cpu here; got gpu (shaders: {_ext.shader_origin()})"
        )
    return mx.Device(mx.cpu if choice == "cpu" or not there else mx.gpu, 0)
