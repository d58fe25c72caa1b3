"""Shaders broken on purpose: each change below must turn a test red.

`make seeded-bugs` applies them one at a time; docs/kernels/testing.md lists them.
"""

from dataclasses import dataclass
from pathlib import Path

# What a list of this length must try at least.
KINDS = (
    *("visibility", "overlap", "ring slot", "barrier", "lane"),
    *("tie rule", "sink", "rotation", "tail guard", "scale"),
)


@dataclass(frozen=True)
class SeededBug:
    """One change to one shader, and the test that it breaks.

    Attributes:
        kind: What is wrong, in a word or two.
        file: Name of the file in ``metal/``.
        text: What is replaced; the file holds it once.
        replacement: What stands there instead.
        test: The test that fails: file in ``tests/kernels/`` and name.
        what: The mistake, for people.
    """

    kind: str
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
        "lane",
        "sinkhorn.h",
        "sums[i] += simd_shuffle(values[i], ushort((lane & 24) + d));",
        "sums[i] += simd_shuffle(values[i], ushort((lane & 16) + d));",
        "test_hyper.py::test_pre_matches_reference",
        "lane of another source in the row sums",
    ),
    SeededBug(
        "lane",
        "sinkhorn.h",
        "values[s / kLaneRows], owner",
        "values[0], owner",
        "test_hyper.py::test_pre_matches_reference",
        "sources 4..7 read as 0..3 in the column sums",
    ),
    SeededBug(
        "count",
        "sinkhorn.h",
        "for (int i = 1; i < iterations; ++i)",
        "for (int i = 0; i < iterations; ++i)",
        "test_hyper.py::test_few_iterations_are_counted_right",
        "one Sinkhorn iteration more",
    ),
    SeededBug(
        "index",
        "hyper.metal",
        "fma(float4(comb[s * S + d]), h[s], sum)",
        "fma(float4(comb[d * S + s]), h[s], sum)",
        "test_hyper.py::test_post_matches_reference",
        "comb transposed",
    ),
    SeededBug(
        "barrier",
        "hyper.metal",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  if (collapses) {",
        "  if (collapses) {",
        "test_hyper.py::test_pre_matches_reference",
        "no barrier before the simdgroups' squares are added",
    ),
    SeededBug(
        "tail guard",
        "hyper.metal",
        "x[t] = load4_or_zero(streams + size_t(t) * n, k, t < n_tokens ? n : 0);",
        "x[t] = load4_or_zero(streams + size_t(t) * n, k, n);",
        "test_hyper.py::test_pre_matches_reference",
        "tokens beyond the last are loaded",
    ),
    SeededBug(
        "tail guard",
        "hyper.metal",
        "  return i < end ? load4(values + i) : float4(0.0f);",
        "  return i <= end ? load4(values + i) : float4(0.0f);",
        "test_hyper.py::test_pre_matches_reference",
        "a vector past the end of a row",
    ),
    SeededBug(
        "lane",
        "hyper.metal",
        "  return fma(a.w, b.w, sum);",
        "  return fma(a.w, b.z, sum);",
        "test_hyper.py::test_head_matches_reference",
        "components swapped in a dot product",
    ),
    SeededBug(
        "alignment",
        "hyper.metal",
        "return float4(*(const device packed_float4*)values);",
        "return *(const device float4*)values;",
        "test_hyper.py::test_inputs_may_begin_at_any_float",
        "aligned vectors loaded where rows begin anywhere",
    ),
    SeededBug(
        "tie rule",
        "route.metal",
        "a.key == b.key && a.id < b.id",
        "a.key == b.key && a.id > b.id",
        "test_route.py::test_ties_go_to_the_lower_id_and_nan_is_last",
        "equal keys go to the higher id",
    ),
    SeededBug(
        "lane",
        "route.metal",
        "sum += simd_shuffle(score, ushort(j));",
        "sum += simd_shuffle(score, ushort(j + 1));",
        "test_route.py::test_hashed_matches_reference",
        "the next lane's score in the sum",
    ),
    SeededBug(
        "tail guard",
        "route.metal",
        "  if (t >= p.n_tokens) {\n    return;\n  }\n  const int token",
        "  const int token",
        "test_route.py::test_hashed_matches_reference",
        "simdgroups without a token go on",
    ),
    SeededBug(
        "NaN",
        "route.metal",
        "return isnan(x) ? 0 : key;",
        "return key;",
        "test_route.py::test_ties_go_to_the_lower_id_and_nan_is_last",
        "NaN is chosen before numbers",
    ),
    SeededBug(
        "visibility",
        "indexer.metal",
        "const int n_seen = visible_rows(p.start + token, p.ratio);\n    HeadSums",
        "const int n_seen = visible_rows(p.start + token + 1, p.ratio);\n    HeadSums",
        "test_indexer.py::test_scores_match_reference",
        "a token sees a row that the next one closes",
    ),
    SeededBug(
        "tail guard",
        "indexer_tile.h",
        "row < count && kStepDims",
        "row <= count && kStepDims",
        "test_indexer.py::test_any_number_of_rows_is_scored_and_selected_from",
        "the row after the last readable one is loaded",
    ),
    SeededBug(
        "lane",
        "indexer_tile.h",
        "simd_shuffle_xor(sum, ushort(1))",
        "simd_shuffle_xor(sum, ushort(2))",
        "test_indexer.py::test_scores_match_reference",
        "lane of another row in the sum over heads",
    ),
    SeededBug(
        "index",
        "indexer.metal",
        "launch.group_tiles == 1 &&",
        "launch.group_tiles <= 16 &&",
        "test_indexer.py::test_a_token_is_scored_alike_alone_and_with_others",
        "rows of the first tile kept for the others",
    ),
    SeededBug(
        "tail guard",
        "indexer.metal",
        "clamp(n_seen - first, 0, kIndexerSliceRows)",
        "clamp(n_seen - first, 0, kIndexerSliceRows - 1)",
        "test_indexer_select.py::test_tokens_of_one_call_may_see_different_slices",
        "last row of a slice is no candidate",
    ),
    SeededBug(
        "tie rule",
        "best_rows.h",
        "popcount(all_equal & lower_lanes)",
        "popcount(all_equal & ~lower_lanes)",
        "test_indexer_select.py::test_topk_of_hard_scores",
        "equal scores go to the higher row",
    ),
    SeededBug(
        "NaN",
        "best_rows.h",
        "if (magnitude > 0x7f800000u) {",
        "if (magnitude > 0x7fffffffu) {",
        "test_indexer_select.py::test_topk_of_hard_scores",
        "NaN is selected like a number",
    ),
]
