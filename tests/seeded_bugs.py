"""Shaders broken on purpose: each change below must turn a test red.

``make seeded-bugs`` applies them one at a time to a copy of ``metal/`` and runs the test of each on
it. ``python tests/seeded_bugs.py --page`` writes the list into docs/kernels/testing.md.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/kernels/testing.md"
TABLE = re.compile(r"(?<=<!-- seeded bugs -->\n).*(?=<!-- end -->)", re.DOTALL)
TESTS_FAILED = 1  # pytest's exit code; the others say that no test ran


@dataclass(frozen=True)
class SeededBug:
    """One change to one shader, and the test that it breaks.

    Attributes:
        file: Name of the file in ``metal/``.
        text: What is replaced; the file holds it once.
        replacement: What stands there instead.
        test: The test that fails: file in ``tests/kernels/`` and name.
        what: The mistake, for people.
    """

    file: str
    text: str
    replacement: str
    test: str
    what: str

    def seed(self, sources: Path) -> None:
        """Writes the change into a copy of ``metal/``.

        Raises:
            ValueError: the text does not occur exactly once.
        """
        path = sources / self.file
        source = path.read_text()
        if (found := source.count(self.text)) != 1:
            raise ValueError(f"{self.file} must hold {self.text!r} once; found {found}")
        path.write_text(source.replace(self.text, self.replacement))


SEEDED_BUGS = [
    SeededBug(
        "sinkhorn.h",
        "sums[i] += simd_shuffle(values[i], ushort((lane & 24) + d));",
        "sums[i] += simd_shuffle(values[i], ushort((lane & 16) + d));",
        "test_hyper.py::test_pre_matches_reference",
        "lane of another source in the row sums",
    ),
    SeededBug(
        "sinkhorn.h",
        "values[s / kLaneRows], owner",
        "values[0], owner",
        "test_hyper.py::test_pre_matches_reference",
        "sources 4..7 read as 0..3 in the column sums",
    ),
    SeededBug(
        "sinkhorn.h",
        "for (int i = 1; i < iterations; ++i)",
        "for (int i = 0; i < iterations; ++i)",
        "test_hyper.py::test_few_iterations_are_counted_right",
        "one Sinkhorn iteration more",
    ),
    SeededBug(
        "hyper.metal",
        "fma(float4(comb[s * S + d]), h[s], sum)",
        "fma(float4(comb[d * S + s]), h[s], sum)",
        "test_hyper.py::test_post_matches_reference",
        "comb transposed",
    ),
    SeededBug(
        "hyper.metal",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  if (collapses) {",
        "  if (collapses) {",
        "test_hyper.py::test_pre_matches_reference",
        "no barrier before the simdgroups' squares are added",
    ),
    SeededBug(
        "hyper.metal",
        "x[t] = load4_or_zero(streams + size_t(t) * n, k, t < n_tokens ? n : 0);",
        "x[t] = load4_or_zero(streams + size_t(t) * n, k, n);",
        "test_hyper.py::test_pre_matches_reference",
        "tokens beyond the last are loaded",
    ),
    SeededBug(
        "hyper.metal",
        "  return i < end ? load4(values + i) : float4(0.0f);",
        "  return i <= end ? load4(values + i) : float4(0.0f);",
        "test_hyper.py::test_pre_matches_reference",
        "a vector past the end of a row",
    ),
    SeededBug(
        "hyper.metal",
        "  return fma(a.w, b.w, sum);",
        "  return fma(a.w, b.z, sum);",
        "test_hyper.py::test_head_matches_reference",
        "components swapped in a dot product",
    ),
    SeededBug(
        "hyper.metal",
        "return float4(*(const device packed_float4*)values);",
        "return *(const device float4*)values;",
        "test_hyper.py::test_inputs_may_begin_at_any_float",
        "aligned vectors loaded where rows begin anywhere",
    ),
    SeededBug(
        "indexer.metal",
        "const int n_seen = visible_rows(p.start + token, p.ratio);\n    HeadSums",
        "const int n_seen = visible_rows(p.start + token + 1, p.ratio);\n    HeadSums",
        "test_indexer.py::test_scores_match_reference",
        "a token sees a row that the next one closes",
    ),
    SeededBug(
        "indexer_tile.h",
        "row < count && kStepDims",
        "row <= count && kStepDims",
        "test_indexer.py::test_any_number_of_rows_is_scored_and_selected_from",
        "the row after the last readable one is loaded",
    ),
    SeededBug(
        "indexer_tile.h",
        "simd_shuffle_xor(sum, ushort(1))",
        "simd_shuffle_xor(sum, ushort(2))",
        "test_indexer.py::test_scores_match_reference",
        "lane of another row in the sum over heads",
    ),
    SeededBug(
        "indexer.metal",
        "launch.group_tiles == 1 &&",
        "launch.group_tiles <= 16 &&",
        "test_indexer.py::test_a_token_is_scored_alike_alone_and_with_others",
        "rows of the first tile kept for the others",
    ),
    SeededBug(
        "indexer.metal",
        "clamp(n_seen - first, 0, kIndexerSliceRows)",
        "clamp(n_seen - first, 0, kIndexerSliceRows - 1)",
        "test_indexer_select.py::test_tokens_of_one_call_may_see_different_slices",
        "last row of a slice is no candidate",
    ),
    SeededBug(
        "best_rows.h",
        "popcount(all_equal & lower_lanes)",
        "popcount(all_equal & ~lower_lanes)",
        "test_indexer_select.py::test_topk_of_hard_scores",
        "equal scores go to the higher row",
    ),
    SeededBug(
        "best_rows.h",
        "if (magnitude > 0x7f800000u) {",
        "if (magnitude > 0x7fffffffu) {",
        "test_indexer_select.py::test_topk_of_hard_scores",
        "NaN is selected like a number",
    ),
]


def run_pytest(sources: Path, tests: list[str]) -> tuple[int, str]:
    """Exit code and output of tests on the shaders in a folder."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--metal-sources", str(sources), *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def node(bug: SeededBug) -> str:
    return f"tests/kernels/{bug.test}"


def outcome(bug: SeededBug) -> str:
    """ "caught", or what went wrong with the bug."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "metal"
        shutil.copytree(ROOT / "metal", sources)
        bug.seed(sources)
        code, output = run_pytest(sources, [node(bug)])
    if re.search(r"^E .*(?:Unable to build|ShaderError)", output, re.MULTILINE):
        return "DOES NOT COMPILE"
    if code == TESTS_FAILED:
        return "caught"
    return "SURVIVED" if code == 0 else f"NOT RUN (pytest exits with {code})"


def table() -> str:
    """The list as the page shows it."""
    rows = [f"| `{bug.file}` | {bug.what} | `{bug.test.split('::')[1]}` |\n" for bug in SEEDED_BUGS]
    return "".join(["| file | mistake | test that fails |\n|---|---|---|\n", *rows])


def main() -> None:
    """Seeds every bug, or those of the files named; exits with 1 if a test stays green."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--page", action="store_true", help="write the list into the page")
    parser.add_argument("files", nargs="*", help="files of metal/; all if none is named")
    arguments = parser.parse_args()
    if arguments.page:
        PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
        return
    bugs = [bug for bug in SEEDED_BUGS if not arguments.files or bug.file in arguments.files]
    code, output = run_pytest(ROOT / "metal", sorted({node(bug) for bug in bugs}))
    if code != 0:
        sys.exit(f"the tests must pass without a bug first\n{output}")
    escaped = 0
    for bug in bugs:
        result = outcome(bug)
        escaped += result != "caught"
        print(f"{result:<16} {bug.file:<16} {bug.what}", flush=True)
    print(f"{len(bugs) - escaped} of {len(bugs)} caught")
    sys.exit(escaped > 0)


if __name__ == "__main__":
    main()
