"""Cubins: every kernel has one, and its arithmetic is rounded where the shader says."""

import re
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mslsim.cuda
from cuda_kernels import families, family_cubin, more_kernels
from cuda_toolkit import needs_toolkit
from embed_metal import shader_source
from executors import MODES, SHADERS, kernel_of, simulated_extension
from mslsim.cuda import compile_ptx, cubin, kernels_in, packed_name
from mslsim.errors import ShaderError

pytestmark = [pytest.mark.simulated, needs_toolkit]

OURS = "mlx_dsv4_"
HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNEL = (
    HEAD
    + """
kernel void compute(
    device {type}* x [[buffer(0)]],
    uint i [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {{
  threadgroup float shared[40];
  {body}
}}
"""
)


def ptx(body: str, folder: Path, type: str = "float") -> str:
    """PTX of a kernel with these statements, behind the shared memory that it has."""
    target = folder / "compute.ptx"
    compile_ptx(KERNEL.format(type=type, body=body), "compute.metal", target)
    text = target.read_text()
    shared = "".join(re.findall(r"^.*\.shared \.align.*\n", text, re.MULTILINE))
    entry = re.search(r"\.entry msl_kernel_compute\([^;]*\n{.*?\n}\n", text, re.DOTALL)
    assert entry is not None
    return shared + entry[0]


def machine(path: Path) -> int:
    """The number of the architecture that a cubin is for."""
    flags = struct.unpack_from("<I", path.read_bytes(), 48)[0]
    return int(flags >> 8 & 0xFF) or int(flags & 0xFF)


def test_every_kernel_of_every_family_is_compiled() -> None:
    names = families()
    assert len(names) == 8
    with ThreadPoolExecutor(2) as pool:
        cubins = dict(zip(names, pool.map(family_cubin, names), strict=True))
    for family, path in cubins.items():
        ahead = set(shader_source(SHADERS, family).built_ahead)
        kernels = set(kernels_in(path))
        assert ahead | {name for name, _ in more_kernels(family)} <= kernels
        plain = set(re.findall(r"void (\w+)\(", (SHADERS / f"{family}.metal").read_text()))
        assert kernels - plain >= ahead - plain
        assert machine(path) == 90


def kernels_with_a_cubin() -> set[str]:
    return {name for family in families() for name in kernels_in(family_cubin(family))}


def kernels_asked_for(modes: Iterable[str]) -> set[str]:
    """Our kernels that a simulator ran in these modes."""
    libraries = simulated_extension().libraries
    return {kernel_of(name) for mode in modes for name in libraries[mode] if OURS in name}


def test_every_kernel_that_a_test_runs_has_a_cubin() -> None:
    """Else it is one more line of tests/cuda_kernels.txt."""
    assert kernels_asked_for(MODES.values()) - kernels_with_a_cubin() == set()


def test_every_kernel_with_a_cubin_is_checked() -> None:
    """By a small case: those marked realistic run neither here nor under compute-sanitizer."""
    assert kernels_with_a_cubin() - kernels_asked_for([MODES["sim-check"]]) == set()


def test_other_architectures() -> None:
    assert machine(family_cubin("route", architecture="sm_121")) == 121


def test_products_are_not_fused_and_division_is_exact(tmp_path: Path) -> None:
    text = ptx("x[i] = x[i] * x[i + 1] + x[i + 2]; x[i] /= x[i + 3]; x[i] = sqrt(x[i]);", tmp_path)
    for rounded in ("mul.rn.f32", "add.rn.f32", "div.rn.f32", "sqrt.rn.f32"):
        assert rounded in text
    assert not re.search(r"\bfma|\.ftz|\.approx", text)
    assert "fma.rn.f32" in ptx("x[i] = fma(x[i], x[i + 1], x[i + 2]);", tmp_path)


def test_half_and_bfloat_round_every_operation(tmp_path: Path) -> None:
    text = ptx("x[i] = x[i] * x[i + 1] + x[i + 2];", tmp_path, "half")
    assert re.search(r"mul\.rn\.f16", text)
    assert re.search(r"add\.rn\.f16", text)
    text = ptx("x[i] = x[i] * x[i + 1] + x[i + 2];", tmp_path, "bfloat")
    assert "mul.rn.f32" in text
    assert text.count("32767") >= 2  # both results are rounded to nearest even


def test_a_simdgroup_is_a_warp_and_a_threadgroup_a_block(tmp_path: Path) -> None:
    text = ptx(
        "shared[lane] = simd_sum(x[i]); threadgroup_barrier(mem_flags::mem_threadgroup);"
        "simdgroup_barrier(mem_flags::mem_threadgroup); x[i] = shared[31 - lane];",
        tmp_path,
    )
    assert text.count("shfl.sync.idx.b32") == 5
    assert set(re.findall(r"shfl\.sync.*, (-?\w+);", text)) == {"-1"}  # every lane
    assert text.count("bar.sync") == text.count("bar.warp.sync") == 1
    assert re.search(r"\.shared .*\[160\]", text)


def test_threads_of_a_threadgroup_are_limited_as_the_kernel_says(tmp_path: Path) -> None:
    source = (
        HEAD
        + """
template <typename T> [[kernel, max_total_threads_per_threadgroup(96)]]
void f(device T* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = T(1); }
template [[host_name("f_int")]] [[kernel]] decltype(f<int>) f<int>;
"""
    )
    target = tmp_path / "f.ptx"
    compile_ptx(source, "f.metal", target)
    assert ".maxntid 96" in target.read_text()
    assert ".maxntid 512" in ptx("x[i] = 1;", tmp_path)


def test_machine_code_names_the_lines_of_the_shader(tmp_path: Path) -> None:
    source = KERNEL.format(type="bfloat", body="x[i] = bfloat(float4(simd_sum(float(x[i]))).y);")
    path = cubin(source, "lines.metal")
    assert b"lines.metal" in path.read_bytes()
    assert kernels_in(path) == ["compute"]
    compile_ptx(source, "lines.metal", tmp_path / "lines.ptx")
    text = (tmp_path / "lines.ptx").read_text()
    files = dict(re.findall(r'\.file\s+(\d+) "(.*?)"', text))
    located = {files[number] for number in re.findall(r"\.loc\s+(\d+) ", text)}
    assert {Path(file).name for file in located} == {"lines.metal"}


def test_messages_name_the_line_of_the_shader(tmp_path: Path) -> None:
    with pytest.raises(ShaderError, match=r"compute.metal:9: error: .*unknown_name"):
        ptx("x[i] = unknown_name;", tmp_path)
    with pytest.raises(
        ShaderError, match=r"f.metal:1: error: parameter `float \* x .*` has no address"
    ):
        cubin("kernel void f(float* x [[buffer(0)]]) {}", "f.metal")


def test_function_constants_are_refused() -> None:
    source = f"{HEAD}constant int n [[function_constant(0)]];" + KERNEL.removeprefix(HEAD).format(
        type="float", body="x[i] = n;"
    )
    with pytest.raises(ShaderError, match="function constants are not compiled for CUDA"):
        cubin(source, "constants.metal")


def test_a_folder_of_cubins_takes_the_place_of_the_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = KERNEL.format(type="float", body="x[i] = 2;")
    packed = tmp_path / packed_name(source, "two.metal")
    packed.write_bytes(b"cubin")
    monkeypatch.setenv("MSLSIM_CUBINS", str(tmp_path))
    monkeypatch.setattr(mslsim.cuda, "toolkit", lambda: pytest.fail("looks for a compiler"))
    assert cubin(source, "two.metal") == packed
    with pytest.raises(ShaderError, match=r"no cubin of two.metal in MSLSIM_CUBINS: .*two-sm_90"):
        cubin(source + " ", "two.metal")


def test_a_machine_without_the_tools_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(mslsim.cuda.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ShaderError, match=r"no bin/ptxas: `pip install nvidia-cuda-nvcc`, or set"):
        mslsim.cuda.nvidia_file("bin/ptxas", "nvidia-cuda-nvcc")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ptxas").touch()
    assert mslsim.cuda.nvidia_file("bin/ptxas", "nvidia-cuda-nvcc") == tmp_path / "bin/ptxas"
