"""ModelConfig: the numbers of V4-Flash in every dialect, and one clear error for each mistake."""

from dataclasses import replace
from typing import Any

import pytest

from mlx_dsv4.config import V4_FLASH, ModelConfig
from mlx_dsv4.errors import ConfigError, UnsupportedModelError

RATIOS = [0, 0] + [4, 128] * 20 + [4]
SHAPES = {
    "token_embd.weight": (129_280, 4096),
    **{
        f"blk.{layer}.attn_compressor_ape.weight": (ratio, 1024 if ratio == 4 else 512)
        for layer, ratio in enumerate(RATIOS)
        if ratio
    },
}

# Without the prefix; what every dialect has in common.
COMMON: dict[str, Any] = {
    "block_count": 43,
    "embedding_length": 4096,
    "context_length": 1_048_576,
    "attention.head_count": 64,
    "attention.head_count_kv": 1,
    "attention.key_length": 512,
    "attention.value_length": 512,
    "rope.dimension_count": 64,
    "rope.freq_base": 10_000.0,
    "attention.compress_rope_freq_base": 160_000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 16.0,
    "rope.scaling.original_context_length": 65_536,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "attention.q_lora_rank": 1024,
    "attention.output_lora_rank": 1024,
    "attention.output_group_count": 8,
    "attention.sliding_window": 128,
    "attention.compress_ratios": [*RATIOS, 0],
    "attention.indexer.head_count": 64,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": 512,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "expert_count": 256,
    "expert_used_count": 6,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 2048,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
    "expert_gating_func": 4,
    "swiglu_clamp_exp": [10.0] * 43,
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 20,
    "hyper_connection.epsilon": 1e-6,
    "hash_layer_count": 3,
}
LLAMA_CPP = COMMON | {"embedding_length_out": 16_384, "swiglu_clamp_shexp": [10.0] * 43}
DS4 = COMMON | {"vocab_size": 129_280, "nextn_predict_layers": 1}
SINGLE_ARTIFACT = LLAMA_CPP | {"attention.compress_ratios": RATIOS}


def layer_of(layer: int, experts: int, parts: int = 5) -> dict[str, tuple[int, ...]]:
    """The first tensors of a layer that have its experts as their outer dimension."""
    rest = {"ffn_gate_exps.weight": (2048, 4096), "ffn_up_exps.weight": (2048, 4096)}
    rest |= {"ffn_down_exps.weight": (4096, 2048), "ffn_gate_inp.weight": (4096,)}
    rest |= {"exp_probs_b.bias": ()}
    shapes = {f"blk.{layer}.{name}": (experts, *shape) for name, shape in rest.items()}
    return dict(list(shapes.items())[:parts])


def metadata(
    keys: dict[str, Any], *, architecture: str = "deepseek4", name: str = "DeepSeek-V4-Flash"
) -> dict[str, object]:
    general = {"general.architecture": architecture, "general.name": name}
    return general | {f"{architecture}.{suffix}": value for suffix, value in keys.items()}


def read(keys: dict[str, Any], **general: str) -> ModelConfig:
    return ModelConfig.from_metadata(metadata(keys, **general), SHAPES)


@pytest.mark.parametrize(
    "keys",
    [
        LLAMA_CPP,
        DS4,
        SINGLE_ARTIFACT,
        LLAMA_CPP | {"attention.compress_ratios": [*RATIOS, 0, 0, 0]},
        LLAMA_CPP | {"swiglu_clamp_exp": 10.0, "swiglu_clamp_shexp": 10.0},
        LLAMA_CPP | {"rope.scaling.yarn_ext_factor": -1.0, "rope.scaling.yarn_attn_factor": 1.0},
        LLAMA_CPP | {"rope.scaling.yarn_beta_fast": 32, "attention.compress_ratios": tuple(RATIOS)},
        {k: v for k, v in LLAMA_CPP.items() if k != "attention.compress_rope_freq_base"}
        | {"rope.freq_base_swa": 160_000.0},
    ],
    ids=["llama.cpp", "ds4", "single", "46 ratios", "scalars", "yarn", "kinds", "swa"],
)
def test_every_dialect_gives_v4_flash(keys):
    assert read(keys) == V4_FLASH


def test_early_architecture_string_is_read():
    assert read(DS4, architecture="deepseek-v4-flash") == V4_FLASH


def test_early_architecture_string_with_current_prefix_is_read():
    general: dict[str, object] = {"general.architecture": "deepseek-v4-flash"}
    found = ModelConfig.from_metadata(metadata(DS4) | general, SHAPES)
    assert found == V4_FLASH


def test_shared_clamp_follows_the_routed_one_only_when_absent():
    routed = LLAMA_CPP | {"swiglu_clamp_exp": [7.0] * 43}
    assert read(routed).clamp_shared == (10.0,) * 43
    assert read(COMMON | {"swiglu_clamp_exp": [7.0] * 43}).clamp_shared == (7.0,) * 43


def test_the_first_entries_of_longer_arrays_count():
    clamps = [float(layer + 1) for layer in range(46)]
    assert read(LLAMA_CPP | {"swiglu_clamp_exp": clamps}).clamp == tuple(clamps[:43])


def test_vocabulary_is_counted_on_the_embedding():
    shapes = SHAPES | {"token_embd.weight": (1000, 4096)}
    assert ModelConfig.from_metadata(metadata(LLAMA_CPP), shapes).vocab == 1000


def test_experts_are_counted_on_each_layer_of_a_pruned_file():
    banks = layer_of(1, 90) | {"blk.42.ffn_gate_exps.weight": (6, 1, 1)}
    experts = ModelConfig.from_metadata(metadata(LLAMA_CPP), SHAPES | banks).experts
    assert experts == (256, 90, *[256] * 40, 6)
    few = "expert_used_count must be at most 5, the experts of layer 7; got 6"
    with pytest.raises(ConfigError, match=few):
        ModelConfig.from_metadata(metadata(LLAMA_CPP), SHAPES | layer_of(7, 5))


@pytest.mark.parametrize("odd", layer_of(0, 1))
@pytest.mark.parametrize("count", [None, 1, 89, 256, 300])
def test_one_missing_or_cut_tensor_does_not_change_the_experts_of_a_layer(odd, count):
    shapes = layer_of(9, 90)
    name = odd.replace("blk.0", "blk.9")
    shapes |= {name: () if count is None else (count, *shapes[name][1:])}
    assert ModelConfig.from_metadata(metadata(LLAMA_CPP), SHAPES | shapes).experts[9] == 90


def test_of_two_numbers_of_experts_the_key_decides():
    two = layer_of(9, 256, parts=2) | dict(list(layer_of(9, 90).items())[2:4])
    assert ModelConfig.from_metadata(metadata(LLAMA_CPP), SHAPES | two).experts[9] == 256
    two = layer_of(9, 90, parts=2) | dict(list(layer_of(9, 256).items())[2:4])
    assert ModelConfig.from_metadata(metadata(LLAMA_CPP), SHAPES | two).experts[9] == 256


@pytest.mark.parametrize("count", [0, 2, -5, 255])
def test_a_key_with_fewer_experts_than_a_layer_has_is_refused(count):
    file = metadata(LLAMA_CPP | {"expert_count": count})
    message = rf"deepseek4\.expert_count must be at least 256, the experts of layer 8; got {count}"
    layers = {name: shape for i in range(43) for name, shape in layer_of(i, 200).items()}
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_metadata(file, SHAPES | layers | layer_of(8, 256))


def test_vocabulary_needs_a_source():
    with pytest.raises(ConfigError, match=r"deepseek4\.vocab_size .* token_embd\.weight"):
        ModelConfig.from_metadata(metadata(LLAMA_CPP), {})


def test_nameless_file_gets_the_name_of_the_architecture():
    assert read(LLAMA_CPP, name="").name == "DeepSeek-V4"


@pytest.mark.parametrize("suffix", COMMON)
def test_each_missing_key_is_named(suffix):
    keys = {k: v for k, v in LLAMA_CPP.items() if k != suffix}
    with pytest.raises(ConfigError) as error:
        read(keys)
    assert f"deepseek4.{suffix} must be" in str(error.value)
    assert "no such key" in str(error.value)


@pytest.mark.parametrize("suffix", LLAMA_CPP)
@pytest.mark.parametrize("value", ["text", [], {"a": 1}, ["a"] * 43, [True] * 43], ids=repr)
def test_each_key_of_a_wrong_type_is_named(suffix, value):
    with pytest.raises(ConfigError) as error:
        read(LLAMA_CPP | {suffix: value})
    assert f"deepseek4.{suffix} must" in str(error.value)


@pytest.mark.parametrize("suffix", [k for k, v in COMMON.items() if type(v) is int])
@pytest.mark.parametrize("value", [-1, 1.5, True, float("nan")], ids=repr)
def test_each_integer_out_of_range_is_named(suffix, value):
    if suffix in ("attention.head_count_kv", "expert_shared_count") and value is True:
        value = 2
    with pytest.raises(ConfigError) as error:
        read(LLAMA_CPP | {suffix: value})
    assert f"deepseek4.{suffix}" in str(error.value)


@pytest.mark.parametrize("suffix", [k for k, v in COMMON.items() if type(v) is float])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), True], ids=repr)
def test_each_float_out_of_range_is_named(suffix, value):
    with pytest.raises(ConfigError) as error:
        read(LLAMA_CPP | {suffix: value})
    assert f"deepseek4.{suffix} must be" in str(error.value)


@pytest.mark.parametrize(
    ("suffix", "value", "message"),
    [
        ("attention.head_count_kv", 8, r"attention\.head_count_kv must be 1; got 8"),
        ("attention.value_length", 256, r"attention\.value_length must be 512; got 256"),
        ("embedding_length_out", 4096, r"embedding_length_out must be absent or 16384; got 4096"),
        ("rope.dimension_count", 63, r"rope\.dimension_count must be even"),
        ("rope.dimension_count", 514, r"at most deepseek4\.attention\.key_length = 512; got 514"),
        ("rope.dimension_count", 256, r"at most deepseek4\.attention\.indexer\.key_length = 128"),
        ("attention.output_group_count", 7, r"head_count must be a multiple of .* = 7; got 64"),
        ("expert_used_count", 257, r"at most 256, the experts of layer 0; got 257"),
        ("expert_count", 0, r"expert_count must be positive; got 0"),
        ("expert_shared_count", 2, r"expert_shared_count must be 1; got 2"),
        ("expert_weights_norm", False, r"expert_weights_norm must be True; got False"),
        ("expert_weights_norm", 1, r"expert_weights_norm must be True; got 1"),
        ("expert_gating_func", 2, r"expert_gating_func must be 4; got 2"),
        ("rope.scaling.type", "linear", r"rope\.scaling\.type must be 'yarn'; got 'linear'"),
        ("rope.scaling.factor", 0.5, r"rope\.scaling\.factor must be at least 1; got 0\.5"),
        ("rope.scaling.yarn_beta_fast", 1.0, r"yarn_beta_fast must be greater than .* = 1\.0"),
        ("rope.scaling.yarn_ext_factor", 1.0, r"yarn_ext_factor must be absent or -1\.0; got 1"),
        ("rope.scaling.yarn_attn_factor", 1.277, r"attn_factor must be absent or 1\.0; got 1\.277"),
        ("rope.scaling.attn_factor", 2.0, r"attn_factor must be absent or 1\.0; got 2\.0"),
        ("rope.scaling.yarn_log_multiplier", 0.1, r"yarn_log_multiplier must be absent or 0\.0"),
        ("hash_layer_count", 44, r"at most deepseek4\.block_count = 43; got 44"),
        ("attention.compress_ratios", RATIOS[:42], r"at least 43 numbers.*got an array of 42"),
        ("attention.compress_ratios", [16] * 43, r"ratios\[0\] must be 0, 4 or 128; got 16"),
        (
            "attention.compress_ratios",
            [0, 0, 128, *RATIOS[3:]],
            r"which has 4; got 128 for layer 2",
        ),
        ("attention.compress_ratios", [4, *RATIOS[1:]], None),
        ("attention.compress_ratios", 4, r"compress_ratios must be an array"),
        ("swiglu_clamp_exp", [10.0] * 42 + [0.0], r"swiglu_clamp_exp\[42\] must be positive"),
        ("swiglu_clamp_shexp", [-1.0] + [10.0] * 42, r"swiglu_clamp_shexp\[0\] must be positive"),
        ("swiglu_clamp_exp", float("inf"), r"swiglu_clamp_exp must be positive and finite"),
        ("vocab_size", "many", r"vocab_size must be an integer; got 'many'"),
        ("vocab_size", 0, r"vocab_size must be positive; got 0"),
    ],
)
def test_each_rule_names_key_expected_and_received(suffix, value, message):
    keys = LLAMA_CPP | {suffix: value}
    if message is None:  # a ratio whose tensors are absent is the tensor check's business
        assert read(keys).ratios[0] == 4
        return
    with pytest.raises(ConfigError, match=r"^deepseek4\..*" + message):
        read(keys)


def test_ratio_zero_is_contradicted_by_a_compressor():
    shapes = SHAPES | {"blk.1.attn_compressor_ape.weight": (128, 512)}
    with pytest.raises(ConfigError, match=r"blk\.1\.attn_compressor_ape.* got 0 for layer 1"):
        ModelConfig.from_metadata(metadata(LLAMA_CPP), shapes)


def test_a_huge_layer_count_is_refused_by_the_length_of_the_arrays():
    with pytest.raises(ConfigError, match="at least 4000000000 numbers"):
        read(LLAMA_CPP | {"block_count": 4_000_000_000, "swiglu_clamp_exp": 10.0})


def test_more_layers_than_any_model_has_are_refused():
    layers = LLAMA_CPP | {"swiglu_clamp_exp": 10.0, "swiglu_clamp_shexp": 10.0}
    layers |= {"attention.compress_ratios": [*RATIOS, *[0] * 982]}
    assert read(layers | {"block_count": 1024}).layers == 1024
    with pytest.raises(ConfigError, match=r"block_count must be at most 1024; got 1025"):
        read(layers | {"block_count": 1025})


def test_the_alias_of_the_compressed_base_is_the_key_in_errors():
    keys = {k: v for k, v in LLAMA_CPP.items() if k != "attention.compress_rope_freq_base"}
    with pytest.raises(ConfigError, match=r"rope\.freq_base_swa must be positive"):
        read(keys | {"rope.freq_base_swa": -1.0})


@pytest.mark.parametrize("architecture", ["llama", "deepseek2", "deepseek32", "deepseek4v", ""])
def test_other_architectures_are_refused(architecture):
    with pytest.raises(UnsupportedModelError, match=f"must be 'deepseek4'.*got '{architecture}'"):
        read(LLAMA_CPP, architecture=architecture)


@pytest.mark.parametrize(
    "general",
    [
        {"architecture": "deepseek41"},
        {"architecture": "deepseek-v4.1-flash"},
        {"architecture": "deepseek4_1"},
        {"name": "DeepSeek V4.1 Flash"},
        {"name": "Deepseek-V4_1-Flash"},
    ],
    ids=lambda general: next(iter(general.values())),
)
def test_v41_is_refused_by_name(general):
    with pytest.raises(UnsupportedModelError, match=r"V4\.1 is another architecture"):
        read(LLAMA_CPP, **general)


def test_v41_is_recognised_by_its_base_model():
    file = metadata(LLAMA_CPP, name="tuned") | {"general.base_model.0.name": "DeepSeek V4.1"}
    with pytest.raises(UnsupportedModelError, match=r"general\.base_model\.0\.name"):
        ModelConfig.from_metadata(file, SHAPES)


@pytest.mark.parametrize("name", ["DeepSeek-V4-Flash-0731", "DeepSeek V4 10B", "deepseek4-128e"])
def test_names_that_only_look_like_v41_are_read(name):
    assert read(LLAMA_CPP, name=name).name == name


@pytest.mark.parametrize("value", [None, 4])
def test_architecture_must_be_a_string(value):
    file = metadata(LLAMA_CPP) | {"general.architecture": value}
    with pytest.raises(ConfigError, match=r"general\.architecture must be a string"):
        ModelConfig.from_metadata(file, SHAPES)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layers", 42, r"ratios must be one value per layer \(42\)"),
        ("rope_dim", 3, "rope_dim must be even"),
        ("heads", 0, "heads must be positive; got 0"),
        ("clamp", (10.0,), "clamp must be one value per layer"),
        ("clamp", (*[10.0] * 42, 0.0), r"clamp\[42\] must be positive and finite; got 0.0"),
        ("experts", (*[256] * 42, 0), r"experts\[42\] must be positive; got 0"),
        ("experts", (*[256] * 42, 5), "experts_used must be at most 5, the experts of layer 42"),
    ],
)
def test_a_config_made_in_code_names_its_field(field, value, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        replace(V4_FLASH, **{field: value})


def test_no_hash_layer_is_allowed():
    assert read(LLAMA_CPP | {"hash_layer_count": 0}).hash_layers == 0
