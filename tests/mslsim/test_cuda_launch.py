"""The launch of cubins over a CUDA driver without a GPU: what is copied, launched and reported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_toolkit import needs_toolkit
from executors import ROOT
from mslsim.compiler import default_compiler

pytestmark = [pytest.mark.simulated, needs_toolkit]

HERE = Path(__file__).parent
TABLES = {"out 268", "out 332"}  # of kernels with four and five parameters
SCRIPT = """
import json, sys
import mlx.core as mx, numpy as np
from executors import running_on
from test_encoder import Launcher, N

answer = {{}}
try:
    with running_on("cuda"):
        launcher = Launcher()
        a, b = launcher.array(3), launcher.array(5)
        {body}
except RuntimeError as error:
    answer["error"] = str(error)
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the driver."""
    folder = tmp_path_factory.mktemp("driver")
    default_compiler().run(
        *("-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-fno-sanitize=all"),
        *(str(HERE / "fake_cuda.cpp"), "-o", str(folder / "libcuda.so.1")),
    )
    return folder


def launch(driver: Path, body: str, **env: str) -> tuple[dict[str, object], list[str]]:
    """Runs statements in their own process; what they answer, and what the driver was asked."""
    log = driver / "log.txt"
    log.write_text("")
    folders = [ROOT, *(ROOT / name for name in ("metal", "tests", "tests/mslsim"))]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(driver),
            "PYTHONPATH": ":".join(map(str, folders)),
            "FAKE_CUDA_LOG": str(log),
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asked = [line for line in log.read_text().splitlines() if line not in TABLES]
    return json.loads(done.stdout.splitlines()[-1]), asked


def test_a_launch_copies_what_it_reads_and_brings_back_what_it_writes(driver: Path) -> None:
    body = "launcher.copy(a, b); answer['a'], answer['b'] = a.tolist(), np.array(b).tobytes().hex()"
    answer, asked = launch(driver, body)
    assert answer == {"a": [3.0] * 64, "b": "07" * 256}
    assert asked == [
        *("alloc 256", "in 256", "alloc 256", "in 256", "alloc 4", "in 4"),
        "launch msl_kernel_copy_values (2, 1, 1) (32, 1, 1) 0",
        *("out 256", "free, 2 left", "free, 1 left", "free, 0 left"),
    ]


def test_a_buffer_lies_as_far_from_a_multiple_of_16_as_its_array(driver: Path) -> None:
    body = """launcher.bind(a, b); launcher.encoder.set_input(a, 0, 20); launcher.launch()"""
    answer, asked = launch(driver, body)
    assert answer == {}
    assert asked[:2] == ["alloc 240", "in 236"]


def test_memory_that_nobody_wrote_is_filled_with_nan_or_left_alone(driver: Path) -> None:
    body = (
        "launcher.encoder.begin_primitive([a]); launcher.copy(a, b); "
        "launcher.encoder.end_primitive([b])"
    )
    _, asked = launch(driver, body)
    assert asked[2:4] == ["alloc 256", "fill 256"]
    _, asked = launch(driver, body, MSLSIM_CUDA_UNFILLED="1")
    assert asked[2:4] == ["alloc 256", "alloc 4"]


def test_threadgroup_memory_is_dynamic_shared_memory(driver: Path) -> None:
    body = (
        "launcher.use('reverse_values'); launcher.encoder.set_input(a, 0); "
        "launcher.encoder.set_output(b, 1); "
        "launcher.encoder.set_threadgroup_bytes({}, 0); launcher.launch(threadgroup=64)"
    )
    _, asked = launch(driver, body.format(256))
    assert "launch msl_kernel_reverse_values (1, 1, 1) (64, 1, 1) 256" in asked
    _, asked = launch(driver, body.format(64 << 10))
    assert "attribute 8 = 65536" in asked


def test_further_runs_are_timed(driver: Path) -> None:
    body = (
        "launcher.controls.set_repeats(3); launcher.copy(a, b); "
        "answer['us'] = launcher.controls.launches()[-1]['gpu_us']"
    )
    answer, asked = launch(driver, body)
    assert answer == {"us": 2000.0}
    assert sum(line.startswith("launch") for line in asked) == 4


@pytest.mark.parametrize(
    ("body", "fails", "message"),
    [
        ("launcher.copy(a, b)", "cuCtxSynchronize", "[cuda] copy_values: CUDA_ERROR_LAUNCH_FAILED"),
        (
            "launcher.copy(a, b)",
            "cuMemAlloc",
            "[cuda] copy_values: buffer 0 of 256 bytes: CUDA_ERROR_OUT_OF_MEMORY (out of memory)",
        ),
        (
            "launcher.bind(a, b); launcher.launch(threads=40)",
            "",
            "the GPU has whole threadgroups only: 40 threads must be a multiple of 32",
        ),
        (
            "launcher.bind(a, b); "
            "launcher.encoder.dispatch_threadgroups((1, 65536, 1), (32, 1, 1))",
            "",
            "dimension 1 of the grid must be at most 65535 threadgroups; got 65536",
        ),
        (
            "launcher.use('no_kernel')",
            "",
            "Unable to load kernel no_kernel: library encoder has no",
        ),
    ],
)
def test_errors_name_the_kernel(driver: Path, body: str, fails: str, message: str) -> None:
    answer, asked = launch(driver, body, FAKE_CUDA_FAILS=fails)
    assert message in str(answer["error"])
    assert not asked or "left" not in asked[-1] or asked[-1] == "free, 0 left"


@pytest.mark.parametrize("required", ["", "1"])
def test_cuda_can_be_required(driver: Path, required: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "tests/kernels/test_route.py",
    ]
    env = {"LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_FAILS": "cuInit"}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, **env, "DSV4_REQUIRE_CUDA": required},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (pytest.ExitCode.USAGE_ERROR if required else 0)
    refused = "no kernel can run on an NVIDIA GPU here: cuInit: CUDA_ERROR_LAUNCH_FAILED"
    assert (refused in done.stderr) == bool(required)


def test_a_machine_whose_driver_fails_has_no_such_executor(driver: Path) -> None:
    body = (
        "from executors import EXECUTORS, cuda_problem; "
        "answer.update(there='cuda' in EXECUTORS, why=cuda_problem())"
    )
    assert launch(driver, body)[0] == {"there": True, "why": ""}
    answer, _ = launch(driver, body, FAKE_CUDA_FAILS="cuInit")
    why = "cuInit: CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)"
    assert (answer["there"], answer["why"]) == (False, why)
