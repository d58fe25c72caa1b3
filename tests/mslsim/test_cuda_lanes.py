"""What lanes do together on a GPU gives the simulator's bits: its code, over simulated shuffles."""

import re
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mslsim.library
from mslsim import Library
from mslsim.compiler import INCLUDE
from mslsim.rewriter import Rewritten, rewrite

pytestmark = pytest.mark.simulated

# The instructions that the code is written with.
INSTRUCTIONS = """
#define __nvvm_read_ptx_sreg_laneid() (__msl_cur->lane)
#define __nvvm_shfl_sync_idx_i32(mask, word, lane, clamp) \\
  ::metal::_msl::shuffle<int>(word, uint(lane), 32)
#define __nvvm_vote_ballot_sync(mask, vote) ::metal::_msl::ballot(vote)
"""
HEADERS = ("msl_cuda_lanes.h", "msl_cuda_matrix_product.h")
KERNEL = """
#include <metal_stdlib>
using namespace metal;
kernel void compare(
    const device {type}* x [[buffer(0)]],
    device {type}* simulated [[buffer(1)]],
    device {type}* on_gpu [[buffer(2)]],
    uint lane [[thread_index_in_simdgroup]]) {{
  simulated[lane] = _msl::{call};
  on_gpu[lane] = _gpu::{call};
}}
"""
REDUCTIONS = [
    f"reduce_{group}<{{type}}, _msl::{name}>(x[lane])"
    for group in ("simdgroup", "quadgroup")
    for name in ("Sum", "Product", "Min", "Max")
]
PREFIXES = [
    f"prefix<{{type}}, _msl::{name}, {identity}, {inclusive}>(x[lane], {scope})"
    for name, identity in (("Sum", 0), ("Product", 1))
    for inclusive in ("true", "false")
    for scope in (32, 4)
]
SHUFFLES = [f"shuffle<{{type}}>(x[lane], {source}, 32)" for source in ("lane ^ 5", "64", "7")]


def gpu_code() -> str:
    """The GPU's functions, in a namespace beside the simulator's."""
    text = "".join((INCLUDE / name).read_text() for name in HEADERS)
    text = re.sub(r"^#(?:pragma once|include).*\n", "", text, flags=re.MULTILINE)
    return text.replace("namespace _msl {", "namespace _gpu {\nusing namespace _msl;", 1).replace(
        "namespace _msl {", "namespace _gpu {"
    )


@pytest.fixture
def with_gpu_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the GPU's functions before what is compiled."""

    def rewritten(text: str, only: None = None) -> Rewritten:
        real = rewrite(text, only=only)
        return Rewritten(f"{INSTRUCTIONS}{gpu_code()}\n{real.text}", real.kernels)

    monkeypatch.setattr(mslsim.library, "rewrite", rewritten)


def values(type_name: str) -> npt.NDArray[Any]:
    """A value per lane; sums of them depend on the order."""
    rng = np.random.default_rng(0)
    if type_name == "int":
        return rng.integers(-9, 9, 32).astype(np.int32)
    x = (rng.standard_normal(32) * 2.0 ** rng.integers(-9, 9, 32)).astype(np.float32)
    x[3], x[19] = 0.0, -0.0
    return x.astype(np.float16) if type_name == "half" else x


def compared(source: str, x: npt.NDArray[Any], n: int = 32) -> tuple[bytes, bytes]:
    """What the simulator and the GPU's code make of x."""
    # The name of a compiled shader depends on its text alone.
    version = zlib.crc32(gpu_code().encode()) >> 1
    library = Library(source=f"{source}\nconstant int kVersion = {version};\n", name="lanes.metal")
    simulated, on_gpu = np.zeros(n, x.dtype), np.ones(n, x.dtype)
    library.kernel("compare").dispatch([x, simulated, on_gpu], threads=32, threadgroup=32)
    return simulated.tobytes(), on_gpu.tobytes()


@pytest.mark.usefixtures("with_gpu_code")
@pytest.mark.parametrize("call", [*REDUCTIONS, *PREFIXES, *SHUFFLES])
@pytest.mark.parametrize("type_name", ["float", "half", "int"])
def test_lanes_give_the_same_bits(call: str, type_name: str) -> None:
    source = KERNEL.format(type=type_name, call=call.format(type=type_name))
    simulated, on_gpu = compared(source, values(type_name))
    assert simulated == on_gpu


@pytest.mark.usefixtures("with_gpu_code")
def test_votes_give_the_same_bits() -> None:
    source = KERNEL.format(type="int", call="ballot(x[lane] > 0)")
    simulated, on_gpu = compared(source, values("int"))
    assert simulated == on_gpu != bytes(128)


@pytest.mark.usefixtures("with_gpu_code")
def test_matrix_products_give_the_same_bits() -> None:
    source = """
#include <metal_stdlib>
using namespace metal;
kernel void compare(
    const device float* x [[buffer(0)]],
    device float* simulated [[buffer(1)]],
    device float* on_gpu [[buffer(2)]],
    uint lane [[thread_index_in_simdgroup]]) {
  _msl::LaneOperands mine;
  for (int i = 0; i < 2; i++) {
    mine.a[i] = x[2 * lane + i];
    mine.b[i] = x[64 + 2 * lane + i];
    mine.c[i] = x[128 + 2 * lane + i];
  }
  float sums[2];
  _msl::multiply_accumulate(mine, sums);
  simulated[2 * lane] = sums[0];
  simulated[2 * lane + 1] = sums[1];
  _gpu::multiply_accumulate(mine, sums);
  on_gpu[2 * lane] = sums[0];
  on_gpu[2 * lane + 1] = sums[1];
}
"""
    x = np.random.default_rng(1).standard_normal(192).astype(np.float32)
    simulated, on_gpu = compared(source, x, 64)
    assert simulated == on_gpu
