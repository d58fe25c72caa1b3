"""What the CPU kernels run with."""

from dataclasses import dataclass

from mlx_dsv4 import _ext


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
