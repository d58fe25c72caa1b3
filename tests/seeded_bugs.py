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
        "tail guard",
        "block_values.h",
        "if (kWhole || first + kSlotValues <= n) {",
        "if (kWhole || first < n) {",
        "test_matmul.py::test_rows_need_not_fill_lanes",
        "four values loaded where fewer are left",
    ),
    SeededBug(
        "scale exponent",
        "block_values.h",
        "(e - 1) << 23",
        "e << 23",
        "test_embed.py::test_embed_decodes_every_code_exactly",
        "MXFP4 scales doubled",
    ),
    SeededBug(
        "lane",
        "block_values.h",
        "words + 1 + 4 * q",
        "words + 1 + 4 * (q ^ 1)",
        "test_matmul.py::test_random_blocks_match_reference",
        "neighbouring lanes' codes swapped",
    ),
    SeededBug(
        "alignment",
        "block_values.h",
        "float4(*(const device packed_float4*)from)",
        "*(const device float4*)from",
        "test_matmul_launches.py::test_inputs_may_begin_at_any_element",
        "aligned vectors loaded where rows begin anywhere",
    ),
    SeededBug(
        "barrier",
        "tile_products.h",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n  for (int s = 0;",
        "  for (int s = 0;",
        "test_matmul.py::test_matches_reference",
        "no barrier before the segments are added",
    ),
    SeededBug(
        "barrier",
        "tile_products.h",
        "  threadgroup_barrier(mem_flags::mem_threadgroup);\n}",
        "}",
        "test_experts_launches.py::test_ragged_shapes_match_reference",
        "no barrier before the segments' memory is used again",
    ),
    SeededBug(
        "tail guard",
        "matmul.metal",
        "token < n ? token : -1",
        "token",
        "test_matmul.py::test_matches_reference",
        "tokens beyond the last are loaded",
    ),
    SeededBug(
        "id guard",
        "matmul.metal",
        "token >= 0 && token < p.n_rows",
        "token >= 0",
        "test_embed.py::test_tokens_outside_the_matrix_are_named",
        "rows beyond the matrix are decoded",
    ),
    SeededBug(
        "order",
        "experts.metal",
        "ids[pair] < expert ? 1 : 0",
        "ids[pair] <= expert ? 1 : 0",
        "test_experts_launches.py::test_groups_of_any_size",
        "an expert's pairs begin behind the next one's",
    ),
    SeededBug(
        "id guard",
        "experts.metal",
        "Partial<kFewHiddenTiles, 1> partials[kFewSimdgroups];\n"
        "  const int pair = int(at.y), expert = ids[pair];\n"
        "  if (expert < 0 || expert >= p.n_experts) {",
        "Partial<kFewHiddenTiles, 1> partials[kFewSimdgroups];\n"
        "  const int pair = int(at.y), expert = ids[pair];\n"
        "  if (expert < 0) {",
        "test_experts_launches.py::test_an_id_that_is_no_expert_makes_its_token_nan",
        "weights beyond the last expert are read",
    ),
    SeededBug(
        "tail guard",
        "experts.metal",
        "min(kManyTokens, group.n - begin)",
        "kManyTokens",
        "test_experts_launches.py::test_groups_of_any_size",
        "a tile reaches into the next expert's pairs",
    ),
    SeededBug(
        "NaN",
        "experts.metal",
        "exists ? products[(first + j) * p.dim + d] : NAN",
        "products[(first + j) * p.dim + d]",
        "test_experts_launches.py::test_an_id_that_is_no_expert_makes_its_token_nan",
        "products that nobody wrote are added",
    ),
    SeededBug(
        "tie rule",
        "experts.metal",
        "(ids[j] == ids[last] && j > last)",
        "(ids[j] == ids[last] && j < last)",
        "test_experts.py::test_an_id_that_stands_twice_counts_twice",
        "an expert's second place is skipped",
    ),
    SeededBug(
        "clamp",
        "experts.metal",
        "up < -clamp ? -clamp : up",
        "up",
        "test_experts.py::test_clamps_bound_the_gate_above_and_up_on_both_sides",
        "up bounded from above only",
    ),
]
