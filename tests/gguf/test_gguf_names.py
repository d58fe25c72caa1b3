"""The tensors a configuration needs, and the one report of how a file differs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlx_dsv4.config import V4_FLASH
from mlx_dsv4.errors import TensorError, UnsupportedModelError
from mlx_dsv4.gguf import (
    GGUFFile,
    TensorInfo,
    check_expert_ids,
    check_tensors,
    expected_tensors,
)
from mlx_dsv4.gguf.names import compare_tensors
from mlx_dsv4.gguf.tiny import tiny_config


def infos_of(config) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(name, spec.shape, "i32" if spec.role == "ids" else "f32", 0, 0, 0)
        for name, spec in expected_tensors(config).items()
    }


def test_v4_flash_needs_the_tensors_of_the_converter():
    """The list comes from converter sources; see the file's 1,328 names."""
    rows = json.loads((Path(__file__).parent / "v4_flash_tensors.json").read_text())
    published = {
        row["name"].replace("*", str(layer)): tuple(row["shape"])
        for row in rows
        for layer in row["layers"] or [0]
    }
    expected = {name: spec.shape for name, spec in expected_tensors(V4_FLASH).items()}
    assert len(published) == 1328
    assert expected == published


def test_roles_separate_products_from_elementwise_and_ids():
    roles = {name.split(".", 2)[-1]: spec.role for name, spec in expected_tensors(V4_FLASH).items()}
    assert roles["ffn_gate_tid2eid.weight"] == "ids"
    elementwise = {part for part, role in roles.items() if role == "elementwise"}
    words = ("norm", "_base", "_scale", "_fn", "_ape", "sinks", "exp_probs_b", "weight")
    assert all(any(word in part for word in words) for part in elementwise)
    matrices = {part for part, role in roles.items() if role == "matrix"}
    assert not [p for p in matrices if any(word in p for word in words[:-1])]


def test_a_model_file_passes(small_model, small_config):
    with GGUFFile(small_model) as file:
        check_tensors(small_config, file.tensors)


def test_each_renamed_tensor_is_missing_and_unmatched(small_config):
    infos = infos_of(small_config)
    for name in infos:
        renamed = {n + ("x" if n == name else ""): info for n, info in infos.items()}
        with pytest.raises(TensorError) as caught:
            check_tensors(small_config, renamed)
        assert caught.value.missing == (name,)
        assert caught.value.unmatched == (name + "x",)
        assert caught.value.wrong == ()
        assert f"missing (1):\n    {name}\n" in str(caught.value)
        assert f"unmatched (1):\n    {name}x" in str(caught.value)


def test_each_wrong_shape_is_named_with_both_shapes(small_config):
    infos = infos_of(small_config)
    for name, info in infos.items():
        wrong = replace(info, shape=(*info.shape[:-1], info.shape[-1] + 32))
        with pytest.raises(TensorError) as caught:
            check_tensors(small_config, infos | {name: wrong})
        assert caught.value.wrong == (name,)
        message = f"{name} must be {list(info.shape)}; got {list(wrong.shape)}"
        assert message in str(caught.value)


def test_transposed_and_flattened_shapes_are_wrong(small_config):
    infos = infos_of(small_config)
    name = "blk.0.ffn_gate_exps.weight"
    for shape in (infos[name].shape[::-1], (infos[name].n_elements,)):
        with pytest.raises(TensorError, match=name):
            check_tensors(small_config, infos | {name: replace(infos[name], shape=shape)})


@pytest.mark.parametrize("format", ["i32", "i8", "f64", "q8_1", "q8_k"])
def test_each_type_that_is_no_weight_is_wrong(format, small_config):
    infos = infos_of(small_config)
    for name, spec in expected_tensors(small_config).items():
        if (spec.role == "ids") == (format == "i32"):
            continue
        with pytest.raises(TensorError) as caught:
            check_tensors(small_config, infos | {name: replace(infos[name], format=format)})
        assert caught.value.wrong == (name,)
        assert f"got {format}" in str(caught.value)


@pytest.mark.parametrize("format", ["f32", "f16", "q8_0"])
def test_expert_tables_are_int32_only(format, small_config):
    infos = infos_of(small_config)
    name = "blk.0.ffn_gate_tid2eid.weight"
    with pytest.raises(TensorError, match=f"{name} must be stored as i32; got {format}"):
        check_tensors(small_config, infos | {name: replace(infos[name], format=format)})


@pytest.mark.parametrize("format", ["tq1_0", "tq2_0"])
def test_formats_without_a_product_are_unsupported_for_matrices_only(format, small_config):
    infos = infos_of(small_config)
    name = "blk.1.ffn_down_exps.weight"
    with pytest.raises(
        UnsupportedModelError,
        match=rf"(?s)not computed on.*{name} must be stored as one of f32, f16, .*; got {format}",
    ):
        check_tensors(small_config, infos | {name: replace(infos[name], format=format)})
    for name, spec in expected_tensors(small_config).items():
        if spec.role == "elementwise":
            check_tensors(small_config, infos | {name: replace(infos[name], format=format)})


@pytest.mark.parametrize("name", ["output.weight", "output_norm.weight"])
def test_unknown_type_ids_are_named(name, small_config):
    infos = infos_of(small_config)
    odd = replace(infos[name], format="type 42", type_id=42)
    with pytest.raises(UnsupportedModelError, match=rf"{name} .*; got type 42"):
        check_tensors(small_config, infos | {name: odd})


def test_one_report_lists_missing_wrong_and_unmatched_together(small_config):
    infos = infos_of(small_config)
    del infos["output.weight"]
    infos["lm_head.weight"] = infos["token_embd.weight"]
    infos["output_norm.weight"] = replace(infos["output_norm.weight"], shape=(7,))
    name = "blk.0.attn_kv.weight"
    infos[name] = replace(infos[name], format="tq1_0")
    with pytest.raises(TensorError) as caught:
        check_tensors(small_config, infos)
    assert caught.value.missing == ("output.weight",)
    assert caught.value.wrong == ("output_norm.weight", name)
    assert caught.value.unmatched == ("lm_head.weight",)
    for part in ("missing (1)", "wrong (2)", "unmatched (1)", "got tq1_0", "got [7]"):
        assert part in str(caught.value)


def test_long_lists_are_cut_in_the_message_and_whole_in_the_error():
    with pytest.raises(TensorError) as caught:
        check_tensors(V4_FLASH, {})
    assert len(caught.value.missing) == 1328
    assert "missing (1328)" in str(caught.value)
    assert "and 1320 more" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 12


def test_extra_tensors_are_listed_and_no_error(small_config):
    layers = small_config.layers
    ignorable = [
        *("mtp.0.attn_norm.weight", "dspark.head.weight", "blk.0.exp_probs_b_vl.bias"),
        *(f"blk.{layers}.nextn.eh_proj.weight", f"blk.{layers}.attn_norm.weight"),
    ]
    infos = infos_of(small_config)
    for name in (*ignorable, "rope_freqs.weight"):
        infos[name] = TensorInfo(name, (1,), "type 99", 99, 0, 1)
    check_tensors(small_config, infos)
    report = compare_tensors(small_config, infos)
    assert report.ignored == tuple(ignorable)
    assert report.unmatched == ("rope_freqs.weight",)


def test_each_layer_has_its_own_number_of_experts():
    config = tiny_config(ratios=(0, 4, 128), experts=(8, 3, 5), hash_layers=1)
    specs = expected_tensors(config)
    for layer, count in enumerate(config.experts):
        for part in ("gate", "up", "down"):
            assert specs[f"blk.{layer}.ffn_{part}_exps.weight"].shape[0] == count
        assert specs[f"blk.{layer}.ffn_gate_inp.weight"].shape[0] == count
    assert specs["blk.1.exp_probs_b.bias"].shape == (3,)


def test_expert_ids_must_be_in_range():
    table = np.array([[0, 3], [2, 2], [1, 0]], dtype=np.int32)
    check_expert_ids("t", table, 4)
    with pytest.raises(TensorError, match=r"t must hold expert ids 0 to 2; got 3 for token 0"):
        check_expert_ids("t", table, 3)
    table[2, 1] = -1
    with pytest.raises(TensorError, match=r"got -1 for token 2") as caught:
        check_expert_ids("t", table, 4)
    assert caught.value.wrong == ("t",)
