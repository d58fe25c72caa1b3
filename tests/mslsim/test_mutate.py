"""Mutants are found where a shader decides or waits, and the equivalent ones are known ones."""

import re
from collections import Counter
from pathlib import Path

import pytest

from mslsim.exceptions_list import read_exceptions
from mslsim.mutate import (
    EQUIVALENTS,
    KILLED,
    SHADERS,
    SURVIVED,
    TESTS_OF_HEADERS,
    Outcome,
    Outcomes,
    families_of_files,
    files_of_tests,
    reason,
    state_of,
)
from mslsim.mutations import mutants_of, shader_mutants

SHADER = """\
// Adds a < b, never a > b.
#include "small.h"
#define LESS(a, b) a < b
static_assert(sizeof(Params) <= 64, "fits");

#ifdef __METAL_VERSION__
inline int on_the_gpu(int n) { return n == 1; }
#else
inline int on_the_host(int n) { return n == 1; }
#endif
#ifndef __METAL_VERSION__
inline int on_the_host_too(int n) { return n == 1; }
#endif

struct Tile {
  template <int N>
  int rows(int n) const thread {
    return n <= N ? n : N;
  }
};

[[kernel, max_total_threads_per_threadgroup(64)]] void add(
    device float* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  threadgroup vec<float, 4> sums[2];
  if (i >= kLimit << 2 || i == 3) {
    return;
  }
  threadgroup_barrier(
      mem_flags::mem_threadgroup);
  for (int j = 0; j < 4; ++j) {
    out[i] = tile.rows<4>(j) > 0 ? 1 : out->x;
  }
  for (int j = 0; j < 4; ++j) {
    simdgroup_barrier(mem_flags::mem_none);
  }
}
"""

MUTANTS = """\
on_the_gpu: inline int on_the_gpu(int n) { return n != 1; }
rows: return n < N ? n : N;
rows: return n > N ? n : N;
add: if (i < kLimit << 2 || i == 3) {
add: if (i > kLimit << 2 || i == 3) {
add: if (i >= kLimit << 2 || i != 3) {
add: ;
add: for (int j = 0; j <= 4; ++j) {
add: for (int j = 0; j >= 4; ++j) {
add: out[i] = tile.rows<4>(j) <= 0 ? 1 : out->x;
add: out[i] = tile.rows<4>(j) >= 0 ? 1 : out->x;
add 2: for (int j = 0; j <= 4; ++j) {
add 2: for (int j = 0; j >= 4; ++j) {
add: ;
"""


def test_mutants_of_a_shader() -> None:
    found = "".join(f"{m.place}: {m.after}\n" for m in mutants_of("small.metal", SHADER))
    assert found == MUTANTS


def test_a_mutant_changes_one_place() -> None:
    for mutant in mutants_of("small.metal", SHADER):
        changed = mutant.apply(SHADER)
        begin, end = mutant.begin, mutant.begin + len(mutant.replacement)
        assert changed[:begin] + mutant.original + changed[end:] == SHADER
        assert changed[begin:end] == mutant.replacement != mutant.original


def test_the_name_of_a_mutant_is_its_own() -> None:
    names = Counter(mutant.name for mutant in shader_mutants(SHADERS))
    assert [name for name, count in names.items() if count > 1] == []


def lines_of_shaders(text: str) -> str:
    """The lines that are compiled where __METAL_VERSION__ is defined."""
    kept, for_shader = [], True
    for line in text.splitlines():
        if line.startswith(("#ifdef __METAL_VERSION__", "#endif")):
            for_shader = True
        elif line.startswith(("#ifndef __METAL_VERSION__", "#else")):
            for_shader = False
        elif for_shader:
            kept.append(line)
    return "\n".join(kept)


def test_every_comparison_and_barrier_of_the_shaders_is_found() -> None:
    mutants = shader_mutants(SHADERS)
    for path in (path for path in SHADERS.iterdir() if path.suffix in {".metal", ".h"}):
        code = re.sub(
            r"//.*|^#.*|static_assert[^;]*;|operator[<>=!]+",
            "",
            lines_of_shaders(path.read_text()),
            flags=re.M,
        )
        equalities = len(re.findall(r"[=!]=", code))
        barriers = len(re.findall(r"_barrier\(", code))
        own = [m.original for m in mutants if m.file == path.name]
        assert sum(text in {"==", "!="} for text in own) == equalities, path.name
        assert sum("barrier" in text for text in own) == barriers, path.name


def test_every_listed_mutant_exists() -> None:
    known = {mutant.name for mutant in shader_mutants(SHADERS)}
    listed = read_exceptions(EQUIVALENTS, "-+")
    assert [name for name in listed if name not in known] == []


def test_a_listed_mutant_needs_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("# title\n\na.metal f\n- x < 1;\n+ x <= 1;\nx is\neven.\n")
    assert read_exceptions(path, "-+") == {("a.metal", "f", "x < 1;", "x <= 1;"): "x is even."}
    path.write_text("a.metal f\n- x < 1;\n+ x <= 1;\n")
    with pytest.raises(ValueError, match=r"lines with -\+ and a reason; got\na\.metal f"):
        read_exceptions(path, "-+")


def test_a_header_belongs_to_the_families_that_include_it() -> None:
    families = families_of_files()
    assert families["sinkhorn.h"] == ["hyper"]
    assert {"hyper", "route"} <= set(families["common.h"])
    assert "test_route.py" in names_of_tests("route", "common.h")
    assert "test_embed.py" in names_of_tests("matmul", "matmul.metal")


def test_a_header_of_several_families_has_tests_of_its_own() -> None:
    for header, names in TESTS_OF_HEADERS.items():
        for family in families_of_files()[header]:
            assert set(names) <= names_of_tests(family, header)
            assert set(names).isdisjoint(names_of_tests(family, f"{family}.metal"))


def names_of_tests(family: str, mutated: str) -> set[str]:
    paths = files_of_tests([family], mutated)
    assert all(path.is_file() for path in paths)
    return {path.name for path in paths}


def test_outcomes_are_kept_between_runs(tmp_path: Path) -> None:
    first, second, *_ = mutants_of("small.metal", SHADER)
    outcomes = Outcomes(tmp_path / "outcomes.json")
    outcomes.add(first, Outcome("state", KILLED, "test_a", "values differ"))
    outcomes.add(second, Outcome("state", SURVIVED))
    again = Outcomes(tmp_path / "outcomes.json")
    assert again.get(first) == Outcome("state", KILLED, "test_a", "values differ")
    assert again.likely_killers(first) == ["test_a"]
    assert again.likely_killers(second) == []
    again.add(second, Outcome("state", KILLED, "test_b"))
    assert again.likely_killers(first) == ["test_a", "test_b"]


def test_an_outcome_holds_for_one_text_of_shaders_and_tests() -> None:
    state = state_of(["route"], "common.h", "text")
    assert state == state_of(["route"], "common.h", "text")
    assert state != state_of(["route"], "common.h", "other text")
    assert state != state_of(["route", "hyper"], "common.h", "text")


def test_the_reason_is_the_first_finding_or_error() -> None:
    assert reason("E   AssertionError: 1 != 2\nE   more\n") == "1 != 2"
    assert (
        reason("E   RuntimeError: [mslsim] add:\nE   [race] of two\nE   [ub] x\n")
        == "[race] of two"
    )
    assert reason("1 passed") == ""
