"""The stand-in for MLX's command encoder refuses launches that Metal or MLX would not survive."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from executors import running_on, simulated_extension

pytestmark = pytest.mark.simulated

SOURCE = (Path(__file__).parent / "encoder.metal").read_text()
N = 64


class Launcher:
    """Binds and launches the kernels of encoder.metal."""

    def __init__(self) -> None:
        self.controls: Any = simulated_extension().controls
        self.encoder = self.controls.encoder()

    def array(self, value: float = 0.0) -> mx.array:
        """Memory that kernels may write."""
        a = mx.full((N,), value, dtype=mx.float32)
        mx.eval(a)
        return a

    def use(self, kernel: str) -> None:
        self.encoder.set_pipeline(self.controls.pipeline("encoder", SOURCE, kernel))

    def bind(self, source: mx.array, target: mx.array) -> None:
        """Binds a copy."""
        self.use("copy_values")
        self.encoder.set_input(source, 0)
        self.encoder.set_output(target, 1)
        self.encoder.set_bytes(np.int32(N).tobytes(), 2)

    def launch(self, threads: int = N, threadgroup: int = 32) -> None:
        self.encoder.dispatch_threads((threads, 1, 1), (threadgroup, 1, 1))

    def copy(self, source: mx.array, target: mx.array) -> None:
        self.bind(source, target)
        self.launch()


@pytest.fixture(params=["sim", "sim-check"])
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    with running_on(request.param):
        yield Launcher()
    simulated_extension().controls.reset_encoders()


def test_kernels_run_in_order(launcher: Launcher) -> None:
    a, b, c = launcher.array(3), launcher.array(), launcher.array()
    launcher.copy(a, b)
    launcher.copy(b, c)  # MLX orders a read after a write by itself
    assert c.tolist() == [3.0] * N


def test_arrays_may_be_bound_at_an_offset(launcher: Launcher) -> None:
    a, b = launcher.array(), mx.arange(N, dtype=mx.float32)
    mx.eval(b)
    launcher.bind(b, a)
    launcher.encoder.set_input(b, 0, 16)
    launcher.encoder.set_bytes(np.int32(N - 4).tobytes(), 2)
    launcher.launch()
    assert a.tolist()[: N - 4] == list(range(4, N))
    with pytest.raises(RuntimeError, match="binds index 0 at offset 260 of 256 bytes"):
        launcher.encoder.set_input(b, 0, 260)


def test_launches_are_recorded(launcher: Launcher) -> None:
    launcher.controls.clear_launches()
    launcher.copy(launcher.array(), launcher.array())
    (launch,) = launcher.controls.launches()
    assert launch == {
        "kernel": "copy_values",
        "grid": [N, 1, 1],
        "threadgroup": [32, 1, 1],
        "grid_is_threads": True,
        "bindings": [(0, "input", 4 * N), (1, "output", 4 * N), (2, "bytes", 4)],
        "gpu_us": 0.0,  # measured on an NVIDIA GPU alone
    }


def test_writing_what_an_earlier_kernel_reads_needs_a_barrier(launcher: Launcher) -> None:
    a, b = launcher.array(1), launcher.array()
    launcher.copy(a, b)
    launcher.encoder.barrier()
    launcher.copy(launcher.array(2), a)
    assert a.tolist() == [2.0] * N
    launcher.controls.reset_encoders()
    launcher.copy(a, b)
    with pytest.raises(RuntimeError, match=r"writes buffer 1 .* barrier\(\) is missing"):
        launcher.copy(launcher.array(3), a)


def test_every_buffer_must_be_bound(launcher: Launcher) -> None:
    launcher.use("copy_values")
    launcher.encoder.set_input(launcher.array(), 0)
    launcher.encoder.set_output(launcher.array(), 1)
    with pytest.raises(RuntimeError, match=r"copy_values runs with buffer 2 \(n\) not bound"):
        launcher.launch()


def test_a_buffer_that_the_kernel_lacks_is_refused(launcher: Launcher) -> None:
    launcher.bind(launcher.array(), launcher.array())
    launcher.encoder.set_input(launcher.array(), 3)
    with pytest.raises(RuntimeError, match="has no buffer 3, but one is bound"):
        launcher.launch()


def test_buffers_of_one_kernel_are_forgotten_for_the_next(launcher: Launcher) -> None:
    launcher.copy(launcher.array(), launcher.array())
    launcher.use("copy_values")
    with pytest.raises(RuntimeError, match=r"buffer 0 \(in\) not bound"):
        launcher.launch()


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ("set_input", r"writes buffer 1 \(out\), which is bound with set_input_array"),
        ("set_bytes", r"writes buffer 1 \(out\), which is bound with set_bytes"),
    ],
)
def test_outputs_must_be_bound_as_such(launcher: Launcher, bind: str, message: str) -> None:
    launcher.bind(launcher.array(), launcher.array())
    value = launcher.array() if bind == "set_input" else bytes(4 * N)
    getattr(launcher.encoder, bind)(value, 1)
    with pytest.raises(RuntimeError, match=message):
        launcher.launch()


def test_inputs_must_be_bound_as_such(launcher: Launcher) -> None:
    launcher.bind(launcher.array(), launcher.array())
    launcher.encoder.set_output(launcher.array(), 0)
    with pytest.raises(RuntimeError, match=r"only reads buffer 0 \(in\), .* set_output_array"):
        launcher.launch()


def test_set_bytes_has_a_limit(launcher: Launcher) -> None:
    launcher.use("copy_values")
    with pytest.raises(RuntimeError, match="sets 4097 bytes at index 2; Metal takes at most 4096"):
        launcher.encoder.set_bytes(bytes(4097), 2)


def test_threadgroup_memory_needs_a_length(launcher: Launcher) -> None:
    a, b = mx.arange(N, dtype=mx.float32), launcher.array()
    mx.eval(a)
    for n_bytes in (None, 4 * N):
        launcher.use("reverse_values")
        launcher.encoder.set_input(a, 0)
        launcher.encoder.set_output(b, 1)
        if n_bytes is None:
            with pytest.raises(RuntimeError, match=r"threadgroup memory 0 \(values\) without"):
                launcher.launch(threadgroup=N)
        else:
            launcher.encoder.set_threadgroup_bytes(n_bytes, 0)
            launcher.launch(threadgroup=N)
    assert b.tolist() == a.tolist()[::-1]
    with pytest.raises(RuntimeError, match="must be a multiple of 16"):
        launcher.encoder.set_threadgroup_bytes(24, 0)


@pytest.mark.parametrize(
    ("threads", "threadgroup", "message"),
    [
        (0, 32, r"empty grid \(0, 1, 1\)"),
        (2048, 2048, r"threadgroups of \(2048, 1, 1\); must have 1 to 1024 threads"),
        (N, 0, r"threadgroups of \(0, 1, 1\); must have 1 to 1024 threads"),
    ],
)
def test_grids_have_limits(
    launcher: Launcher, threads: int, threadgroup: int, message: str
) -> None:
    launcher.bind(launcher.array(), launcher.array())
    with pytest.raises(RuntimeError, match=message):
        launcher.launch(threads, threadgroup)


def test_a_grid_larger_than_the_arrays_is_reported_with_its_line(launcher: Launcher) -> None:
    launcher.bind(launcher.array(), launcher.array())
    launcher.encoder.set_bytes(np.int32(2 * N).tobytes(), 2)
    line = 1 + SOURCE.splitlines().index("    out[i] = in[i];")
    with pytest.raises(RuntimeError, match=rf"(?s)\[(bounds|fault)\].*encoder.metal:{line}"):
        launcher.launch(2 * N)


def test_temporaries_must_be_given_to_the_encoder(launcher: Launcher) -> None:
    for given in (True, False):
        a, b, temporary = launcher.array(5), launcher.array(), launcher.array()
        launcher.encoder.begin_primitive([a])
        if given:
            launcher.encoder.add_temporary(temporary)
        launcher.copy(a, temporary)
        launcher.copy(temporary, b)
        if given:
            launcher.encoder.end_primitive([b])
            assert b.tolist() == [5.0] * N
        else:
            with pytest.raises(RuntimeError, match=r"was not given to add_temporary\(\)"):
                launcher.encoder.end_primitive([b])


def test_memory_must_be_written_before_it_is_read(launcher: Launcher) -> None:
    a, b, temporary = launcher.array(), launcher.array(), launcher.array()
    launcher.encoder.begin_primitive([a])
    launcher.encoder.add_temporary(temporary)
    with pytest.raises(RuntimeError, match=r"reads buffer 0 \(in\), which no kernel has written"):
        launcher.copy(temporary, b)
