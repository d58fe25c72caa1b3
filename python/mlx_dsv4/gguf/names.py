"""Which tensors a configuration needs, and how those of a file differ from them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import TensorError, UnsupportedModelError
from mlx_dsv4.gguf.blocks import DECODABLE, PACKED
from mlx_dsv4.gguf.reader import TensorInfo

Role = Literal["matrix", "elementwise", "ids"]

_NAMES_IN_MESSAGE = 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What one tensor must be.

    Args:
        shape: Outer dimension first.
        role: ``matrix`` is multiplied in its packed form, ``elementwise`` is dequantised when
            loaded, ``ids`` are int32.
    """

    shape: tuple[int, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class TensorReport:
    """How the tensors of a file differ from those of a configuration, in the file's order.

    ``wrong`` and ``unsupported`` map a name to what must be and what came. ``unsupported`` are
    tensors in a block format that is not computed on. ``unmatched`` have no place in the model;
    ``ignored`` are those of them that belong to draft or vision parts.
    """

    missing: tuple[str, ...]
    wrong: Mapping[str, str]
    unsupported: Mapping[str, str]
    unmatched: tuple[str, ...]
    ignored: tuple[str, ...]


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor of the model by name, outer dimension first.

    Source: the tensor list of llama.cpp's ``deepseek4`` architecture.
    """
    hidden, streams = config.hidden, config.streams
    specs = {
        "token_embd.weight": TensorSpec((config.vocab, hidden), "matrix"),
        "output_norm.weight": TensorSpec((hidden,), "elementwise"),
        "output.weight": TensorSpec((config.vocab, hidden), "matrix"),
        "output_hc_fn.weight": TensorSpec((streams, streams * hidden), "elementwise"),
        "output_hc_base.weight": TensorSpec((streams,), "elementwise"),
        "output_hc_scale.weight": TensorSpec((1,), "elementwise"),
    }
    for layer in range(config.layers):
        for name, spec in _layer_tensors(config, layer):
            specs[f"blk.{layer}.{name}"] = spec
    return specs


def _layer_tensors(config: ModelConfig, layer: int) -> Iterator[tuple[str, TensorSpec]]:
    yield from _hyper_tensors(config)
    yield from _attention_tensors(config)
    yield from _feed_forward_tensors(config, layer)
    ratio = config.ratios[layer]
    if ratio > 0:
        yield from _compressor_tensors("attn_compressor", config, ratio, config.head_dim)
    if ratio == 4:
        queries = config.indexer_heads * config.indexer_dim
        yield "indexer.attn_q_b.weight", TensorSpec((queries, config.q_rank), "matrix")
        yield "indexer.proj.weight", TensorSpec((config.indexer_heads, config.hidden), "matrix")
        yield from _compressor_tensors("indexer_compressor", config, ratio, config.indexer_dim)


def _hyper_tensors(config: ModelConfig) -> Iterator[tuple[str, TensorSpec]]:
    mixes = config.streams * (config.streams + 2)
    for part in ("attn", "ffn"):
        flat = config.streams * config.hidden
        yield f"hc_{part}_fn.weight", TensorSpec((mixes, flat), "elementwise")
        yield f"hc_{part}_base.weight", TensorSpec((mixes,), "elementwise")
        yield f"hc_{part}_scale.weight", TensorSpec((3,), "elementwise")


def _attention_tensors(config: ModelConfig) -> Iterator[tuple[str, TensorSpec]]:
    hidden, q_rank, head_dim = config.hidden, config.q_rank, config.head_dim
    queries = config.heads * head_dim
    latent = config.output_groups * config.output_rank
    yield "attn_norm.weight", TensorSpec((hidden,), "elementwise")
    yield "attn_sinks.weight", TensorSpec((config.heads,), "elementwise")
    yield "attn_q_a.weight", TensorSpec((q_rank, hidden), "matrix")
    yield "attn_q_a_norm.weight", TensorSpec((q_rank,), "elementwise")
    yield "attn_q_b.weight", TensorSpec((queries, q_rank), "matrix")
    yield "attn_kv.weight", TensorSpec((head_dim, hidden), "matrix")
    yield "attn_kv_a_norm.weight", TensorSpec((head_dim,), "elementwise")
    # The groups' matrices lie one after another; each reads its own heads.
    yield "attn_output_a.weight", TensorSpec((latent, queries // config.output_groups), "matrix")
    yield "attn_output_b.weight", TensorSpec((hidden, latent), "matrix")


def _feed_forward_tensors(config: ModelConfig, layer: int) -> Iterator[tuple[str, TensorSpec]]:
    hidden, inner, experts = config.hidden, config.expert_hidden, config.experts[layer]
    yield "ffn_norm.weight", TensorSpec((hidden,), "elementwise")
    yield "ffn_gate_inp.weight", TensorSpec((experts, hidden), "matrix")
    if layer < config.hash_layers:
        yield "ffn_gate_tid2eid.weight", TensorSpec((config.vocab, config.experts_used), "ids")
    else:
        yield "exp_probs_b.bias", TensorSpec((experts,), "elementwise")
    for part in ("gate", "up"):
        yield f"ffn_{part}_exps.weight", TensorSpec((experts, inner, hidden), "matrix")
        yield f"ffn_{part}_shexp.weight", TensorSpec((inner, hidden), "matrix")
    yield "ffn_down_exps.weight", TensorSpec((experts, hidden, inner), "matrix")
    yield "ffn_down_shexp.weight", TensorSpec((hidden, inner), "matrix")


def _compressor_tensors(
    prefix: str, config: ModelConfig, ratio: int, dim: int
) -> Iterator[tuple[str, TensorSpec]]:
    # Spans of 4 overlap: half of the columns serve the previous span.
    width = 2 * dim if ratio == 4 else dim
    yield f"{prefix}_ape.weight", TensorSpec((ratio, width), "elementwise")
    yield f"{prefix}_kv.weight", TensorSpec((width, config.hidden), "matrix")
    yield f"{prefix}_gate.weight", TensorSpec((width, config.hidden), "matrix")
    yield f"{prefix}_norm.weight", TensorSpec((dim,), "elementwise")


def is_ignorable(name: str, config: ModelConfig) -> bool:
    """Whether a tensor belongs to a draft or vision part that real files carry along."""
    block = re.match(r"blk\.(\d+)\.", name)
    if block and int(block[1]) >= config.layers:
        return True
    return name.startswith(("mtp.", "dspark.")) or name.endswith(".exp_probs_b_vl.bias")


def compare_tensors(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> TensorReport:
    """Compare the tensors of a file with those that ``config`` needs; raises nothing."""
    expected = expected_tensors(config)
    wrong: dict[str, str] = {}
    unsupported: dict[str, str] = {}
    for name, spec in expected.items():
        info = tensors.get(name)
        if info is None:
            continue
        if info.shape != spec.shape:
            wrong[name] = f"must be {list(spec.shape)}; got {list(info.shape)}"
            continue
        accepted = {"matrix": PACKED, "elementwise": DECODABLE, "ids": ("i32",)}[spec.role]
        if info.format not in accepted:
            rule = f"must be stored as {_any_of(accepted)}; got {info.format}"
            is_format = spec.role != "ids" and (info.format in DECODABLE or not info.known)
            (unsupported if is_format else wrong)[name] = rule
    others = [name for name in tensors if name not in expected]
    return TensorReport(
        missing=tuple(name for name in expected if name not in tensors),
        wrong=wrong,
        unsupported=unsupported,
        unmatched=tuple(name for name in others if not is_ignorable(name, config)),
        ignored=tuple(name for name in others if is_ignorable(name, config)),
    )


def weight_bytes(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> tuple[int, int]:
    """Bytes of a model's weights that stay in its file, and of those that are decoded from it.

    Matrices are computed on where they lie. Elementwise tensors become float32, ids int32.
    """
    in_file = decoded = 0
    for name, spec in expected_tensors(config).items():
        info = tensors.get(name)
        if info is not None and spec.role == "matrix":
            in_file += info.n_bytes
        elif info is not None:
            decoded += 4 * info.n_elements
    return in_file, decoded


def _any_of(formats: Sequence[str]) -> str:
    if len(formats) > len(PACKED):
        return "a format that can be decoded"
    return formats[0] if len(formats) == 1 else f"one of {', '.join(formats)}"


def check_tensors(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise one error for everything about the tensors that keeps a file from running.

    Names that the model has no place for are no error; they are part of the report when there
    is another one, because a misspelt tensor is both missing and unmatched.

    Raises:
        TensorError: tensors are missing or have another shape or type than needed.
        UnsupportedModelError: all are there, some in a block format that is not computed on.
    """
    report = compare_tensors(config, tensors)
    if report.missing or report.wrong:
        wrong = {**report.wrong, **report.unsupported}
        raise tensor_error("", report.missing, wrong, report.unmatched)
    if report.unsupported:
        lines = [f"{name} {rule}" for name, rule in report.unsupported.items()]
        raise UnsupportedModelError(
            "block formats that are not computed on:" + _section("unsupported", lines)
        )


def tensor_error(
    prefix: str, missing: Sequence[str], wrong: Mapping[str, str], unmatched: Sequence[str]
) -> TensorError:
    """One report of all that keeps tensors from being those of a configuration."""
    parts = [
        _section("missing", missing),
        _section("wrong", [f"{name} {rule}" for name, rule in wrong.items()]),
        _section("unmatched", unmatched),
    ]
    return TensorError(
        f"{prefix}the tensors must be those of the configuration:" + "".join(parts),
        missing=missing,
        wrong=tuple(wrong),
        unmatched=unmatched,
    )


def _section(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    shown = "".join(f"\n    {line}" for line in lines[:_NAMES_IN_MESSAGE])
    rest = len(lines) - _NAMES_IN_MESSAGE
    more = f"\n    and {rest} more" if rest > 0 else ""
    return f"\n  {title} ({len(lines)}):{shown}{more}"


def check_expert_ids(name: str, ids: NDArray[np.signedinteger], experts: int) -> None:
    """Refuse a token-to-expert table that names an expert the model does not have.

    Args:
        name: Of the tensor.
        ids: ``[V, experts_used]`` int32 or int64.
        experts: Number of experts; ids count from 0.

    Raises:
        TensorError: an id is out of range; the message names the first token.
    """
    outside = (ids < 0) | (ids >= experts)
    if outside.any():
        token, column = map(int, np.argwhere(outside)[0])
        raise TensorError(
            f"{name} must hold expert ids 0 to {experts - 1}; "
            f"got {int(ids[token, column])} for token {token}",
            wrong=(name,),
        )
