"""Weights of a model: matrices stay in the file, packed; small tensors become float32 arrays."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np
from xxhash import xxh3_128

from mlx_dsv4 import ops
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import FileFormatError
from mlx_dsv4.gguf import (
    PACKED,
    GGUFFile,
    block_shape,
    check_tensors,
    expected_tensors,
)
from mlx_dsv4.gguf.release import release_of
from mlx_dsv4.gguf.values import expert_table, finite_values

SAMPLE_BYTES = 4096  # of each tensor: the page that is read anyway when it is first used


@dataclass(frozen=True, slots=True)
class Matrix:
    """Raw GGUF blocks ``[..., N, row_bytes]`` uint8 and the name of their format."""

    data: mx.array
    format: str

    def __call__(self, x: mx.array, *, groups: int = 1) -> mx.array:
        """``x @ W.T``, ``[T, groups * K]`` -> ``[T, N]`` float32."""
        return ops.matmul(x, self.data, format=self.format, groups=groups)

    def rows(self, tokens: mx.array) -> mx.array:
        """The decoded rows of ``tokens`` ``[T]``, ``[T, K]`` float32."""
        return ops.embed(tokens, self.data, format=self.format)


@dataclass(frozen=True, slots=True)
class HyperWeights:
    """One hyper-connection, and the norm of the sublayer behind it."""

    fn: mx.array
    base: mx.array
    scale: mx.array
    norm: mx.array


@dataclass(frozen=True, slots=True)
class CompressorWeights:
    value: Matrix
    gate: Matrix
    ape: mx.array
    norm: mx.array


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    q_b: Matrix
    head_weights: Matrix
    compressor: CompressorWeights


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    hyper: HyperWeights
    q_a: Matrix
    q_a_norm: mx.array
    q_b: Matrix
    kv: Matrix
    kv_norm: mx.array
    sinks: mx.array
    output_a: Matrix
    output_b: Matrix
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A bank of SwiGLU experts ``[E, ...]``; the shared expert is a bank of one."""

    gate: Matrix
    up: Matrix
    down: Matrix
    clamp: float

    def __call__(self, x: mx.array, ids: mx.array, weights: mx.array) -> mx.array:
        formats = (self.gate.format, self.up.format, self.down.format)
        return ops.experts(
            x,
            ids,
            weights,
            self.gate.data,
            self.up.data,
            self.down.data,
            formats=formats,
            clamp=self.clamp,
        )


@dataclass(frozen=True, slots=True)
class FeedForwardWeights:
    """One of ``bias`` (scored routing) and ``table`` (hash routing) is there."""

    hyper: HyperWeights
    router: Matrix
    bias: mx.array | None
    table: mx.array | None
    routed: ExpertWeights
    shared: ExpertWeights


@dataclass(frozen=True, slots=True)
class LayerWeights:
    attention: AttentionWeights
    feed_forward: FeedForwardWeights


@dataclass(frozen=True, slots=True)
class WeightMemory:
    """Where the weights of a model are, in bytes.

    Args:
        file_backed: Matrices, which are computed on in the mapped file. They take no memory that
            the system could not have back at any time.
        resident: As much of the file as is in memory now.
        anonymous: Small tensors that were decoded when the model was loaded.
    """

    file_backed: int
    resident: int
    anonymous: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything of a file that the forward pass reads."""

    config: ModelConfig
    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    head: HyperWeights
    output: Matrix
    vocabulary: str  # digest of what the file says of its tokenizer
    files: tuple[ops.MappedFile, ...]

    def memory(self) -> WeightMemory:
        """Where the weights are now; asks the system for the state of every page."""
        arrays = list(_arrays((self.embedding, self.layers, self.head, self.output)))
        file_backed = sum(array.nbytes for array, kind in arrays if kind in PACKED)
        anonymous = sum(array.nbytes for array, kind in arrays if kind not in PACKED)
        resident = sum(file.resident_bytes() for file in self.files)
        return WeightMemory(file_backed, resident, anonymous)

    def digest(self) -> str:
        """Tells models of equal numbers apart: hashes the first bytes of every tensor."""
        digest = xxh3_128()
        for array, kind in _arrays((self.embedding, self.layers, self.head, self.output)):
            digest.update(f"{kind} {array.shape}".encode())
            digest.update(np.asarray(array).reshape(-1).view(np.uint8)[:SAMPLE_BYTES].data)
        return digest.hexdigest()


def _arrays(part: object) -> Iterator[tuple[mx.array, str]]:
    """Every array of nested weights, in their order, and how its elements are stored."""
    if isinstance(part, Matrix):
        yield part.data, part.format
    elif isinstance(part, mx.array):
        yield part, str(part.dtype)
    elif isinstance(part, tuple):
        for inner in part:
            yield from _arrays(inner)
    elif is_dataclass(part):
        yield from _arrays(tuple(getattr(part, field.name) for field in fields(part)))


def load_weights(file: GGUFFile) -> Weights:
    """Check a file against its configuration and bind its tensors; matrices are not read.

    Args:
        file: An open GGUF file. The arrays map it again and outlive it.

    Raises:
        ConfigError, UnsupportedModelError: the metadata is not that of a model we run.
        TensorError: tensors are missing or wrong, names them all; or one that is decoded holds a
            value that no model has.
        FileFormatError: the file was replaced or changed since it was opened.
    """
    release_of(file.metadata, file.path)
    shapes = {name: info.shape for name, info in file.tensors.items()}
    config = ModelConfig.from_metadata(file.metadata, shapes)
    check_tensors(config, file.tensors)
    return _Binder(file, config).bind()


def _vocabulary_digest(metadata: Mapping[str, object]) -> str:
    digest = xxh3_128()
    for key in sorted(key for key in metadata if key.startswith("tokenizer.ggml.")):
        digest.update(f"{key} {metadata[key]!r}".encode())
    return digest.hexdigest()


def _map_again(path: Path, identity: tuple[int, int, int]) -> ops.MappedFile:
    """Map the file whose header was read, and no other that was put in its place since."""
    try:
        mapped = ops.MappedFile(path)
    except RuntimeError as error:
        raise FileFormatError(f"{path}: must stay while it is loaded; {error}") from error
    if (*mapped.identity, mapped.n_bytes) != identity:
        raise FileFormatError(f"{path}: must stay while it is loaded; it was replaced or changed")
    return mapped


class _Binder:
    """Turns the names of a checked file into the dataclasses above."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self.file = file
        self.config = config
        self.specs = expected_tensors(config)
        self.mapped = [
            _map_again(path, identity)
            for path, identity in zip(file.paths, file.identities, strict=True)
        ]

    def bind(self) -> Weights:
        return Weights(
            config=self.config,
            embedding=self.matrix("token_embd.weight"),
            layers=tuple(self.layer(index) for index in range(self.config.layers)),
            head=self.hyper("output_hc", "output_norm.weight"),
            output=self.matrix("output.weight"),
            vocabulary=_vocabulary_digest(self.file.metadata),
            files=tuple(self.mapped),
        )

    def matrix(self, name: str, *, bank_of_one: bool = False) -> Matrix:
        info = self.file.tensors[name]
        elements, block_bytes = block_shape(info.format)
        shape = (*info.shape[:-1], info.shape[-1] // elements * block_bytes)
        shape = (1, *shape) if bank_of_one else shape
        return Matrix(self.mapped[info.part].view(info.offset, shape), info.format)

    def array(self, name: str) -> mx.array:
        return mx.array(finite_values(self.file, name))

    def table(self, name: str, experts: int) -> mx.array:
        return mx.array(expert_table(self.file, name, experts))

    def hyper(self, prefix: str, norm: str) -> HyperWeights:
        fn, base, scale = (self.array(f"{prefix}_{p}.weight") for p in ("fn", "base", "scale"))
        return HyperWeights(fn, base, scale, self.array(norm))

    def layer(self, index: int) -> LayerWeights:
        prefix = f"blk.{index}."
        return LayerWeights(self.attention(prefix, index), self.feed_forward(prefix, index))

    def attention(self, prefix: str, index: int) -> AttentionWeights:
        ratio = self.config.ratios[index]
        compressor = self.compressor(prefix + "attn_compressor") if ratio else None
        indexer = self.indexer(prefix) if f"{prefix}indexer.proj.weight" in self.specs else None
        return AttentionWeights(
            hyper=self.hyper(prefix + "hc_attn", prefix + "attn_norm.weight"),
            q_a=self.matrix(prefix + "attn_q_a.weight"),
            q_a_norm=self.array(prefix + "attn_q_a_norm.weight"),
            q_b=self.matrix(prefix + "attn_q_b.weight"),
            kv=self.matrix(prefix + "attn_kv.weight"),
            kv_norm=self.array(prefix + "attn_kv_a_norm.weight"),
            sinks=self.array(prefix + "attn_sinks.weight"),
            output_a=self.matrix(prefix + "attn_output_a.weight"),
            output_b=self.matrix(prefix + "attn_output_b.weight"),
            compressor=compressor,
            indexer=indexer,
        )

    def compressor(self, prefix: str) -> CompressorWeights:
        return CompressorWeights(
            value=self.matrix(prefix + "_kv.weight"),
            gate=self.matrix(prefix + "_gate.weight"),
            ape=self.array(prefix + "_ape.weight"),
            norm=self.array(prefix + "_norm.weight"),
        )

    def indexer(self, prefix: str) -> IndexerWeights:
        return IndexerWeights(
            q_b=self.matrix(prefix + "indexer.attn_q_b.weight"),
            head_weights=self.matrix(prefix + "indexer.proj.weight"),
            compressor=self.compressor(prefix + "indexer_compressor"),
        )

    def feed_forward(self, prefix: str, index: int) -> FeedForwardWeights:
        hashed, experts = index < self.config.hash_layers, self.config.experts[index]
        return FeedForwardWeights(
            hyper=self.hyper(prefix + "hc_ffn", prefix + "ffn_norm.weight"),
            router=self.matrix(prefix + "ffn_gate_inp.weight"),
            bias=None if hashed else self.array(prefix + "exp_probs_b.bias"),
            table=self.table(prefix + "ffn_gate_tid2eid.weight", experts) if hashed else None,
            routed=self.experts(prefix, "exps", self.config.clamp[index]),
            shared=self.experts(prefix, "shexp", self.config.clamp_shared[index]),
        )

    def experts(self, prefix: str, bank: str, clamp: float) -> ExpertWeights:
        gate, up, down = (
            self.matrix(f"{prefix}ffn_{part}_{bank}.weight", bank_of_one=bank == "shexp")
            for part in ("gate", "up", "down")
        )
        return ExpertWeights(gate, up, down, clamp)
