"""Compiling shaders: either compiler, messages at the right line, a cache for many processes."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from mslsim import Library, ShaderError
from mslsim.compiler import Compiler, default_compiler, installed_compilers

pytestmark = pytest.mark.simulated

SCALE = """
#include <metal_stdlib>
using namespace metal;
kernel void scale(
    device float* x [[buffer(0)]],
    constant float& factor [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  threadgroup float sum[1];
  const float total = simd_sum(x[i]);
  if (i == 0) sum[0] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = x[i] * factor + precise::exp(sum[0] * 0);
}
"""
MACROS = "#include <metal_stdlib>\nusing namespace metal;\n"


@pytest.mark.parametrize("mode", ["fast", "check", "cov"])
@pytest.mark.parametrize("compiler", installed_compilers(), ids=lambda c: c.command[-1])
def test_every_compiler_and_mode(compiler: Compiler, mode: str) -> None:
    library = Library(source=SCALE, name="scale.metal", mode=mode, compiler=compiler)
    x = np.arange(32, dtype=np.float32)
    library.kernel("scale").dispatch([x, np.float32(2)], threads=32, threadgroup=32)
    np.testing.assert_array_equal(x, 2 * np.arange(32) + 1)
    if mode != "fast":
        with pytest.raises(ShaderError, match=r"(?s)\[bounds\].*at scale.metal:9"):
            library.kernel("scale").dispatch(
                [x[:31].copy(), np.float32(2)], threads=32, threadgroup=32
            )


def test_without_clang_the_compiler_is_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MSLSIM_CXX", raising=False)
    monkeypatch.setattr("mslsim.compiler.shutil.which", lambda name: None)
    installed_compilers.cache_clear()
    try:
        assert default_compiler().is_zig
        monkeypatch.setattr("mslsim.compiler.importlib.util.find_spec", lambda name: None)
        installed_compilers.cache_clear()
        with pytest.raises(
            ShaderError, match="install clang 19 or later, or `pip install ziglang`"
        ):
            default_compiler()
    finally:
        installed_compilers.cache_clear()


def test_the_environment_may_name_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = installed_compilers()[-1]
    monkeypatch.setenv("MSLSIM_CXX", " ".join(chosen.command))
    assert default_compiler() == chosen


# Apple's compiler refuses each of these lines, whatever C++ thinks of them.
REFUSED = """
bfloat implicit_bfloat(float x) { bfloat b = x; return b; }
half4 implicit_vector(float4 x) { return x; }
bfloat bfloat_maths(bfloat x) { return exp(x); }
float ambiguous(half a, float b) { return max(a, b); }
ulong long_sum(ulong x) { return simd_sum(x); }
ulong long_shuffle(ulong x) { return simd_shuffle(x, 1); }
void write_constant(constant float* p) { p[0] = 1; }
float absent_component(float3 v) { return v.w; }
float4 too_few_components(float2 v) { return float4(v, 1.0f); }
float host_function(float x) { return strtof("1", nullptr); }
"""


def test_each_error_is_at_its_line() -> None:
    with pytest.raises(ShaderError) as raised:
        Library(source=MACROS + REFUSED, name="refused.metal")
    lines = {int(n) for n in re.findall(r"refused\.metal:(\d+): error:", str(raised.value))}
    first = MACROS.count("\n") + 2
    assert lines == set(range(first, first + REFUSED.count("\n") - 1))


def test_messages_show_nothing_of_the_rewritten_text() -> None:
    with pytest.raises(ShaderError) as raised:
        Library(source=MACROS + "void f() {\n  int x = nothing;\n}\n", name="bad.metal")
    assert str(raised.value) == "bad.metal:4: error: use of undeclared identifier 'nothing'"


def test_preprocessor_errors_are_messages_too() -> None:
    with pytest.raises(ShaderError, match=r"^bad\.metal:1: (fatal )?error: .*absent.h"):
        Library(source='#include "absent.h"\n', name="bad.metal")


KERNEL = "kernel void f(device float* a [[buffer({a})]], device float* b [[buffer({b})]]) {{}}\n"
INDICES = "enum Buffer { kFirst, kSecond, kThirtyOne = 31 };\n"


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ("kFirst", "kFirst", "`a` and `b` of kernel `f` have the same buffer index"),
        ("kFirst", "kSecond - 1", "`a` and `b` of kernel `f` have the same buffer index"),
        ("kFirst", "kThirtyOne", "buffer index of `b` of kernel `f` must be 0 to 30"),
        ("kFirst - 1", "1", "buffer index of `a` of kernel `f` must be 0 to 30"),
    ],
)
def test_buffer_indices_are_checked(a: str, b: str, message: str) -> None:
    with pytest.raises(ShaderError, match=re.escape(message)) as raised:
        Library(source=MACROS + INDICES + KERNEL.format(a=a, b=b), name="indices.metal")
    assert str(raised.value).startswith("indices.metal:4: error: static assertion failed")


def test_a_mode_must_exist() -> None:
    with pytest.raises(ShaderError, match="mode must be one of fast, check, cov; got 'slow'"):
        Library(source=SCALE, mode="slow")


def test_two_processes_may_compile_one_shader_at_once(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        import numpy as np
        from mslsim import Library
        x = np.ones(32, np.float32)
        sys.stdin.readline()
        kernel = Library(source=sys.argv[1], name="scale.metal").kernel("scale")
        kernel.dispatch([x, np.float32(2)], threads=32, threadgroup=32)
        print(x.sum())
    """)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, SCALE],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    assert outputs == ["96.0\n", "96.0\n"]
    suffixes = {path.suffix for path in (tmp_path / "mslsim").iterdir() if path.is_file()}
    assert suffixes == {".pch", ".so", ".json"}, "a partial file is left"
