"""The shader check finds errors that only Metal's compiler would, and each kind of them."""

import re
from pathlib import Path

import pytest

from check_shaders import CLANG, check_shaders, diagnostics
from dialect import opencl, segments, with_thread_methods
from one_definition import clashes

PLANTED = Path(__file__).parent / "planted.metal"
VERSIONS = {"": [310, 410], "3.1: ": [310], "4.1: ": [410]}


def test_every_planted_error_is_found_under_the_versions_that_have_it() -> None:
    found = check_shaders([PLANTED])
    expected = {}
    for number, line in enumerate(PLANTED.read_text().splitlines(), 1):
        comment = re.search(r"\S\s+// (\d\.\d: )?(.*)", line)
        if comment is not None:
            expected[number] = (comment[2], VERSIONS[comment[1] or ""])
    missed = [
        (number, text)
        for number, (text, versions) in expected.items()
        if not any(
            text in problem.message and problem.line == number and found[problem] == versions
            for problem in found
        )
    ]
    assert missed == []
    assert [str(problem) for problem in found if problem.line not in expected] == []


def test_correct_metal_passes(tmp_path: Path) -> None:
    shader = tmp_path / "correct.metal"
    shader.write_text("""
#include <metal_stdlib>
using namespace metal;
struct Params {
  int n;
};
struct Pair {
  int first;
  int second() const { return first + 1; }
};
inline int by_value(Params p, thread const float2 (&sums)[2]) {
  return p.n + int(sums[0].x);
}
template <typename T>
[[kernel, max_total_threads_per_threadgroup(64)]] void correct(
    const device T* x [[buffer(0)]],
    constant Params& p [[buffer(1)]],
    device atomic_uint* count [[buffer(2)]],
    device T* y [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T tile[4][8];
  threadgroup Pair pair;
  if (lane == 0) {
    pair.first = int(group.x);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const Pair own = pair;
  const float2 sums[2] = {float2(0.0f, 1.0f), float2(half2(1.0h, 2.0h))};
  tile[0][lane % 8] = T(simd_sum(float(x[lane]))) + T(own.second() + by_value(p, sums));
  atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);
  y[lane] = tile[0][0];
}
template [[host_name("correct_bfloat")]] [[kernel]] decltype(correct<bfloat>) correct<bfloat>;
""")
    assert list(check_shaders([shader])) == []


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("int f() { return 0; }", "int f() thread { return 0; }"),
        ("int f(int (&x)[2]) const;", "int f(int (&x)[2]) const thread;"),
        ("int f() const threadgroup { return 0; }", None),
        ("static int f() { return 0; }", None),
        ("S(int n) : n(n) {}", None),
        ("int n = f(3);", None),
        ("static_assert(sizeof(int) == 4);", None),
    ],
)
def test_a_method_without_an_address_space_is_of_thread(method: str, expected: str | None) -> None:
    text = "struct S {{\n  {}\n}};\nint g() {{ if (true) {{ h(); }} }}\n"
    assert with_thread_methods(text.format(method)) == text.format(expected or method)


def test_lines_stay_where_they_are() -> None:
    text = "{\n  threadgroup\n  float s[\n  4];\n}\n[[kernel,\n  host_name(1)]] void f();\n"
    assert opencl(text, 310).count("\n") == text.count("\n")


def test_segments_name_the_line_of_a_problem() -> None:
    (first, second) = segments('# 7 "a.h" 1\nx\ny\n# 1 "lib" 2 3\nz\n')
    assert str(first.problem(2, "wrong")) == "a.h:8: wrong"
    assert (first.is_library, second.is_library) == (False, True)


def test_a_copy_from_constant_is_no_problem() -> None:
    error = "a.metal:1:2: error: no matching constructor for initialization of 'Params'\n"
    note = (
        "a.h:1:2: note: candidate constructor not viable: cannot bind reference in address space "
        "'__constant' to object in address space '__generic' in 1st argument\n"
    )
    assert list(diagnostics(error + note)) == []
    assert len(list(diagnostics(error))) == 1


def test_two_shaders_define_one_name_alike(tmp_path: Path) -> None:
    shared = "struct Pair {\n  int first;\n};\n\ninline int twice(int x) {\n  return x + x;\n}\n"
    (tmp_path / "a.metal").write_text(f"{shared}inline int f(int x) {{ return x; }}\n")
    (tmp_path / "b.metal").write_text(f"{shared}inline int f(float x) {{ return 1; }}\n")
    paths = [tmp_path / "a.metal", tmp_path / "b.metal"]
    assert list(clashes(paths)) == []
    paths[1].write_text(shared.replace("x + x", "2 * x").replace("first", "second"))
    messages = [f"{problem.line} {problem.message.split(' is')[0]}" for problem in clashes(paths)]
    assert messages == ["5 twice(int x)", "1 struct Pair"]


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("check_shaders.CLANG", (*CLANG[:2], "no_such_module"))
    with pytest.raises(RuntimeError, match="no_such_module failed"):
        check_shaders([PLANTED])
