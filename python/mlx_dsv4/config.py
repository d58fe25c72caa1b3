"""The numbers of a model: read from a file's metadata, checked once, never assumed."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from mlx_dsv4.errors import ConfigError, UnsupportedModelError
from mlx_dsv4.typed_keys import TypedKeys, describe

ARCHITECTURES = ("deepseek4", "deepseek-v4-flash")
RATIOS = (0, 4, 128)
# Far above any model: what is made per layer, of one number of a file, stays small.
MOST_LAYERS = 1024

_NOT_V4 = re.compile(r"deepseek[\s_-]*v?4[\s._-]?1(?!\d)", re.IGNORECASE)
NAME_KEYS = ("general.name", "general.basename", "general.base_model.0.name")

# Field of ModelConfig -> key without its architecture prefix.
KEYS = {
    "context": "context_length",
    "vocab": "vocab_size",
    "layers": "block_count",
    "hidden": "embedding_length",
    "heads": "attention.head_count",
    "head_dim": "attention.key_length",
    "rope_dim": "rope.dimension_count",
    "rope_base": "rope.freq_base",
    "compress_rope_base": "attention.compress_rope_freq_base",
    "yarn_factor": "rope.scaling.factor",
    "yarn_original_context": "rope.scaling.original_context_length",
    "yarn_beta_fast": "rope.scaling.yarn_beta_fast",
    "yarn_beta_slow": "rope.scaling.yarn_beta_slow",
    "q_rank": "attention.q_lora_rank",
    "output_rank": "attention.output_lora_rank",
    "output_groups": "attention.output_group_count",
    "window": "attention.sliding_window",
    "ratios": "attention.compress_ratios",
    "indexer_heads": "attention.indexer.head_count",
    "indexer_dim": "attention.indexer.key_length",
    "top_k": "attention.indexer.top_k",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "experts": "expert_count",
    "experts_used": "expert_used_count",
    "expert_hidden": "expert_feed_forward_length",
    "expert_scale": "expert_weights_scale",
    "clamp": "swiglu_clamp_exp",
    "clamp_shared": "swiglu_clamp_shexp",
    "streams": "hyper_connection.count",
    "sinkhorn_iterations": "hyper_connection.sinkhorn_iterations",
    "hyper_eps": "hyper_connection.epsilon",
    "hash_layers": "hash_layer_count",
}
_INTEGERS = (
    *("layers", "context", "hidden", "heads", "head_dim", "rope_dim", "yarn_original_context"),
    *("q_rank", "output_rank", "output_groups", "window", "indexer_heads", "indexer_dim", "top_k"),
    *("experts_used", "expert_hidden", "streams", "sinkhorn_iterations", "hash_layers"),
)
_FLOATS = (
    *("rope_base", "compress_rope_base", "yarn_factor", "yarn_beta_fast", "yarn_beta_slow"),
    *("norm_eps", "expert_scale", "hyper_eps"),
)
# Keys without a field: this engine computes one value of each.
REQUIRED_VALUES: dict[str, object] = {
    "attention.head_count_kv": 1,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_gating_func": 4,
    "rope.scaling.type": "yarn",
}
# The same for keys that may be absent. Other values would mean an attention temperature.
OPTIONAL_VALUES: dict[str, object] = {
    "rope.scaling.yarn_ext_factor": -1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
COMPRESS_BASE_ALIAS = "rope.freq_base_swa"
_DERIVED = ("attention.value_length", "embedding_length_out", COMPRESS_BASE_ALIAS)
# Tensors of a layer whose outer dimension is its experts -> number of their dims.
_COUNTED = {
    **dict.fromkeys((f"ffn_{part}_exps.weight" for part in ("gate", "up", "down")), 3),
    **{"ffn_gate_inp.weight": 2, "exp_probs_b.bias": 1},
}
READ_KEYS = frozenset((*KEYS.values(), *REQUIRED_VALUES, *OPTIONAL_VALUES, *_DERIVED))


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Every number the forward pass needs, and nothing else.

    ``ratios``, ``experts``, ``clamp`` and ``clamp_shared`` hold one value per layer.

    Raises:
        ConfigError: a field breaks a rule; the message names the field.
    """

    name: str
    context: int
    vocab: int
    layers: int
    hidden: int
    heads: int
    head_dim: int
    rope_dim: int
    rope_base: float
    compress_rope_base: float
    yarn_factor: float
    yarn_original_context: int
    yarn_beta_fast: float
    yarn_beta_slow: float
    q_rank: int
    output_rank: int
    output_groups: int
    window: int
    ratios: tuple[int, ...]
    indexer_heads: int
    indexer_dim: int
    top_k: int
    norm_eps: float
    experts: tuple[int, ...]
    experts_used: int
    expert_hidden: int
    expert_scale: float
    clamp: tuple[float, ...]
    clamp_shared: tuple[float, ...]
    streams: int
    sinkhorn_iterations: int
    hyper_eps: float
    hash_layers: int

    def __post_init__(self) -> None:
        check_rules(asdict(self), _field_name)

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], tensor_shapes: Mapping[str, tuple[int, ...]]
    ) -> "ModelConfig":
        """Read the numbers of a GGUF file, in either dialect of its keys.

        Absent keys that a tensor answers are taken from the tensor: ``vocab_size`` is the rows
        of ``token_embd.weight``. A layer has as many experts as most of its tensors say; a pruned
        file has fewer there than ``expert_count``, and no file more. ``compress_ratios`` may be
        longer than the layers (entries of draft layers follow) and must agree with the rows of
        each ``attn_compressor_ape``.

        Args:
            metadata: Key to value, as :class:`mlx_dsv4.gguf.GGUFFile` reads them.
            tensor_shapes: Tensor name to shape, outer dimension first.

        Raises:
            UnsupportedModelError: another architecture, or DeepSeek-V4.1.
            ConfigError: a key is missing, of the wrong type or out of range.
        """
        return _from_metadata(metadata, tensor_shapes)


def model_architecture(metadata: Mapping[str, object]) -> str:
    """The architecture string of a file, if it is one that is run here.

    Raises:
        ConfigError: ``general.architecture`` is missing or not a string.
        UnsupportedModelError: another architecture, or DeepSeek-V4.1.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ConfigError(f"general.architecture must be a string; got {describe(architecture)}")
    names = {key: metadata.get(key) for key in NAME_KEYS}
    refuse_other_models({"general.architecture": architecture} | names)
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"general.architecture must be {' or '.join(map(repr, ARCHITECTURES))} "
            f"(DeepSeek-V4); got {architecture!r}"
        )
    return architecture


def refuse_other_models(names: Mapping[str, object]) -> None:
    """Refuse a model that is named like DeepSeek-V4 and is not.

    Args:
        names: Where a name stands, for the message, to the name; what is no string is passed over.

    Raises:
        UnsupportedModelError: one of them is DeepSeek-V4.1's.
    """
    for place, name in names.items():
        if isinstance(name, str) and _NOT_V4.search(name):
            raise UnsupportedModelError(
                f"DeepSeek-V4.1 is another architecture than DeepSeek-V4 and is not supported "
                f"({place} is {name!r}); use a GGUF of DeepSeek-V4-Flash"
            )


def key_prefix(metadata: Mapping[str, object]) -> str:
    """What the model's keys begin with: the architecture string, or ``deepseek4``."""
    architecture = metadata.get("general.architecture")
    own = f"{architecture}."
    return own if any(key.startswith(own) for key in metadata) else f"{ARCHITECTURES[0]}."


def model_numbers(keys: TypedKeys) -> dict[str, Any]:
    """The fields of :class:`ModelConfig` that are one number, or one number per layer.

    Raises:
        ConfigError: a key is missing or of the wrong type.
    """
    values: dict[str, Any] = {field: keys.integer(keys.suffixes[field]) for field in _INTEGERS}
    values |= {field: keys.number(keys.suffixes[field]) for field in _FLOATS}
    # The array bounds the layers by the bytes of the file, so it comes before scalars.
    layers = values["layers"]
    values["ratios"] = keys.per_layer(keys.suffixes["ratios"], layers, int)
    values["experts"] = (keys.integer(keys.suffixes["experts"]),) * layers
    for field in ("clamp", "clamp_shared"):
        values[field] = keys.per_layer(keys.suffixes[field], layers, float)
    return values


def _from_metadata(
    metadata: Mapping[str, object], tensor_shapes: Mapping[str, tuple[int, ...]]
) -> ModelConfig:
    model_architecture(metadata)
    keys = TypedKeys(metadata, key_prefix(metadata), KEYS)
    if keys.get(KEYS["compress_rope_base"]) is None and keys.get(COMPRESS_BASE_ALIAS):
        keys.suffixes["compress_rope_base"] = COMPRESS_BASE_ALIAS
    if keys.get(KEYS["clamp_shared"]) is None:
        keys.suffixes["clamp_shared"] = KEYS["clamp"]
    for suffix, wanted in REQUIRED_VALUES.items():
        keys.expect(suffix, wanted)
    for suffix, wanted in OPTIONAL_VALUES.items():
        keys.expect(suffix, wanted, optional=True)
    values = model_numbers(keys)
    values["vocab"] = _vocabulary_size(keys, tensor_shapes)
    declared = keys.integer(KEYS["experts"])
    experts = tuple(_experts_of(i, declared, tensor_shapes) for i in range(values["layers"]))
    values["experts"] = experts
    name = metadata.get("general.name")
    values["name"] = name if isinstance(name, str) and name else "DeepSeek-V4"

    check_rules(values, keys.name)
    if declared < max(experts):
        most = f"{max(experts)}, the experts of layer {experts.index(max(experts))}"
        raise ConfigError(f"{keys.name('experts')} must be at least {most}; got {declared}")
    keys.expect("attention.value_length", values["head_dim"])
    keys.expect("embedding_length_out", values["hidden"] * values["streams"], optional=True)
    _check_ratios_against_tensors(values["ratios"], keys, tensor_shapes)
    return ModelConfig(**values)


def _vocabulary_size(keys: TypedKeys, tensor_shapes: Mapping[str, tuple[int, ...]]) -> int:
    if keys.get(KEYS["vocab"]) is not None:
        return keys.integer(KEYS["vocab"])
    shape = tensor_shapes.get("token_embd.weight")
    if not shape:
        raise ConfigError(
            f"{keys.name('vocab')} must be an integer, or token_embd.weight must be present to "
            f"count its rows; got neither"
        )
    return shape[0]


def _experts_of(layer: int, declared: int, tensor_shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The experts of a layer by most of its tensors: one that is cut must not look like the rule.

    Where as many say one number as another, ``declared`` counts.
    """
    shapes = {name: tensor_shapes.get(f"blk.{layer}.{name}", ()) for name in _COUNTED}
    votes = Counter(shape[0] for name, shape in shapes.items() if len(shape) == _COUNTED[name])
    return max(votes, key=lambda count: (votes[count], count == declared), default=declared)


def _check_ratios_against_tensors(
    ratios: tuple[int, ...], keys: TypedKeys, tensor_shapes: Mapping[str, tuple[int, ...]]
) -> None:
    for layer, ratio in enumerate(ratios):
        tensor = f"blk.{layer}.attn_compressor_ape.weight"
        shape = tensor_shapes.get(tensor)
        if shape and shape[0] != ratio:
            raise ConfigError(
                f"{keys.name('ratios')} must agree with the rows of {tensor}, "
                f"which has {shape[0]}; got {ratio} for layer {layer}"
            )


class Naming(Protocol):
    """Turns a field, or its value for one layer, into what the reader knows it as."""

    def __call__(self, field: str, layer: int | None = None, /) -> str: ...


def _field_name(field: str, layer: int | None = None) -> str:
    return field if layer is None else f"{field}[{layer}]"


def check_rules(values: Mapping[str, Any], name: Naming) -> None:
    """Raise for the first broken rule, by its ``name``."""

    def need(holds: bool, field: str, rule: str) -> None:
        if not holds:
            raise ConfigError(f"{name(field)} must be {rule}; got {values[field]!r}")

    may_be_zero = ("hash_layers",)
    for field in (*_INTEGERS, "vocab"):
        need(values[field] >= (field not in may_be_zero), field, "positive")
    for field in _FLOATS:
        need(math.isfinite(values[field]) and values[field] > 0, field, "positive and finite")
    need(values["layers"] <= MOST_LAYERS, "layers", f"at most {MOST_LAYERS}")
    need(values["yarn_factor"] >= 1, "yarn_factor", "at least 1")
    need(
        values["yarn_beta_fast"] > values["yarn_beta_slow"],
        "yarn_beta_fast",
        f"greater than {name('yarn_beta_slow')} = {values['yarn_beta_slow']!r}",
    )
    for field in ("head_dim", "indexer_dim"):
        need(
            values["rope_dim"] % 2 == 0 and values["rope_dim"] <= values[field],
            "rope_dim",
            f"even and at most {name(field)} = {values[field]}",
        )
    groups = f"a multiple of {name('output_groups')} = {values['output_groups']}"
    need(values["heads"] % values["output_groups"] == 0, "heads", groups)
    at_most_layers = f"at most {name('layers')} = {values['layers']}"
    need(values["hash_layers"] <= values["layers"], "hash_layers", at_most_layers)
    for field in ("ratios", "experts", "clamp", "clamp_shared"):
        count = len(values[field])
        need(count == values["layers"], field, f"one value per layer ({values['layers']})")
    for layer, ratio in enumerate(values["ratios"]):
        if ratio not in RATIOS:
            raise ConfigError(f"{name('ratios', layer)} must be 0, 4 or 128; got {ratio!r}")
    fewest = min(values["experts"])
    layer = values["experts"].index(fewest)
    if fewest < 1:
        raise ConfigError(f"{name('experts', layer)} must be positive; got {fewest}")
    of_layer = f"at most {fewest}, the experts of layer {layer}"
    need(values["experts_used"] <= fewest, "experts_used", of_layer)
    for field in ("clamp", "clamp_shared"):
        for layer, limit in enumerate(values[field]):
            if not (math.isfinite(limit) and limit > 0):
                raise ConfigError(
                    f"{name(field, layer)} must be positive and finite; got {limit!r}"
                )


V4_FLASH = ModelConfig(
    name="DeepSeek-V4-Flash",
    context=1_048_576,
    vocab=129_280,
    layers=43,
    hidden=4096,
    heads=64,
    head_dim=512,
    rope_dim=64,
    rope_base=10_000.0,
    compress_rope_base=160_000.0,
    yarn_factor=16.0,
    yarn_original_context=65_536,
    yarn_beta_fast=32.0,
    yarn_beta_slow=1.0,
    q_rank=1024,
    output_rank=1024,
    output_groups=8,
    window=128,
    ratios=(0, 0, *(4 if layer % 2 == 0 else 128 for layer in range(2, 43))),
    indexer_heads=64,
    indexer_dim=128,
    top_k=512,
    norm_eps=1e-6,
    experts=(256,) * 43,
    experts_used=6,
    expert_hidden=2048,
    expert_scale=1.5,
    clamp=(10.0,) * 43,
    clamp_shared=(10.0,) * 43,
    streams=4,
    sinkhorn_iterations=20,
    hyper_eps=1e-6,
    hash_layers=3,
)
