"""Which tensors of a checkpoint become which of a GGUF file, all of them checked at once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.checkpoint.encode import FP4_BLOCK, FP8_BLOCK, encode
from mlx_dsv4.checkpoint.names import is_draft, scale_name, source_names
from mlx_dsv4.checkpoint.shards import StoredTensor
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import UnsupportedModelError
from mlx_dsv4.gguf.blocks import block_shape
from mlx_dsv4.gguf.names import (
    Role,
    TensorSpec,
    check_expert_ids,
    expected_tensors,
    tensor_error,
)

_DTYPES: dict[Role, tuple[str, ...]] = {
    "matrix": ("F8_E4M3", "I8", "BF16", "F32"),
    "elementwise": ("F32", "BF16"),
    "ids": ("I64", "I32"),
}
_SCALE_DTYPES = ("F8_E8M0", "U8")


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor to write.

    Args:
        name: In the GGUF file.
        format: Its block format there.
        sources: A weight and its scale, or None; of each expert in order if it is a bank.
        experts: How many ids there are.
    """

    name: str
    format: str
    sources: tuple[tuple[StoredTensor, StoredTensor | None], ...]
    experts: int

    def data(self) -> Iterator[NDArray[np.generic]]:
        """Its bytes in order, as arrays of a few megabytes.

        Raises:
            TensorError: a value is no number of the model.
        """
        if self.format == "i32":
            yield self._ids()
            return
        for weight, scale in self.sources:
            yield from encode(weight, scale, self.format)

    def _ids(self) -> NDArray[np.int32]:
        weight = self.sources[0][0]
        stored = np.int64 if weight.dtype == "I64" else np.int32
        ids: NDArray[np.signedinteger] = weight.codes().view(stored)
        check_expert_ids(str(weight), ids, self.experts)
        return ids.astype(np.int32)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every tensor of the GGUF file in order, and names of draft parts that are left out."""

    targets: tuple[Target, ...]
    ignored: tuple[str, ...]


def make_plan(
    folder: Path, config: ModelConfig, tensors: Mapping[str, StoredTensor], dense: str
) -> Plan:
    """Find the sources of every tensor.

    Args:
        folder: Of the checkpoint, for errors.
        config: Numbers of the model.
        tensors: Of the checkpoint.
        dense: What FP8 is stored as: ``q8_0`` or ``bf16``.

    Raises:
        UnsupportedModelError: the names are those that transformers writes.
        TensorError: tensors are missing, have another shape or type, or no place in the model.
    """
    foreign = next((name for name in tensors if name.startswith("model.")), None)
    if foreign and "embed.weight" not in tensors:
        raise UnsupportedModelError(
            f"{folder}: tensors must have the names of DeepSeek's release, such as "
            f"layers.0.attn.wq_a.weight; got {foreign}: a checkpoint that transformers wrote"
        )
    missing: list[str] = []
    wrong: dict[str, str] = {}
    used: set[str] = set()
    targets = []
    for name, spec in expected_tensors(config).items():
        names = source_names(name, spec)
        pairs = [(weight, _scale_of(weight, spec, tensors)) for weight in names]
        needed = [part for pair in pairs for part in pair if part is not None]
        # Scales of a weight that is missing are not a fault of their own.
        used.update(needed, (scale_name(x) for x in names if x not in tensors))
        lacking = [part for part in needed if part not in tensors]
        missing += lacking
        if lacking:
            continue
        sources = tuple(
            (tensors[weight], tensors[scale] if scale else None) for weight, scale in pairs
        )
        format = _format(spec, sources[0][0], dense)
        wrong |= dict(_faults(spec, sources, format))
        targets.append(Target(name, format, sources, config.experts[0]))
    others = [name for name in tensors if name not in used]
    unmatched = [name for name in others if not is_draft(name, config)]
    if missing or wrong or unmatched:
        raise tensor_error(f"{folder}: ", missing, wrong, unmatched)
    return Plan(tuple(targets), tuple(name for name in others if is_draft(name, config)))


def _scale_of(weight: str, spec: TensorSpec, tensors: Mapping[str, StoredTensor]) -> str | None:
    """The name of the scales that a weight of this type needs."""
    coded = weight in tensors and tensors[weight].dtype in ("F8_E4M3", "I8")
    return scale_name(weight) if coded and spec.role == "matrix" else None


def _format(spec: TensorSpec, weight: StoredTensor, dense: str) -> str:
    if spec.role != "matrix":
        return "i32" if spec.role == "ids" else "f32"
    return {"F8_E4M3": dense, "I8": "mxfp4", "BF16": "bf16"}.get(weight.dtype, "f32")


def _faults(
    spec: TensorSpec, sources: tuple[tuple[StoredTensor, StoredTensor | None], ...], format: str
) -> Iterator[tuple[str, str]]:
    """Names of wrong tensors, with what they must be and what came."""
    rows_and_columns = spec.shape[-2:] if len(spec.shape) == 3 else spec.shape
    first = sources[0][0].dtype
    for weight, scale in sources:
        accepted = _DTYPES[spec.role]
        if weight.dtype not in accepted:
            yield weight.name, f"must be {' or '.join(accepted)}; got {weight.dtype}"
            continue
        if weight.dtype != first:
            yield weight.name, f"must be {first}, as the first expert is; got {weight.dtype}"
            continue
        shape = rows_and_columns
        if weight.dtype == "I8":
            shape = (shape[0], shape[1] // 2)
        if weight.shape != shape:
            yield weight.name, f"must be {list(shape)}; got {list(weight.shape)}"
        elif rows_and_columns[-1] % block_shape(format)[0]:
            rule = f"must have rows of a multiple of {block_shape(format)[0]} for {format}"
            yield weight.name, f"{rule}; got {rows_and_columns[-1]}"
        elif scale is not None:
            yield from _scale_faults(weight, scale, rows_and_columns)


def _scale_faults(
    weight: StoredTensor, scale: StoredTensor, shape: tuple[int, ...]
) -> Iterator[tuple[str, str]]:
    rows, columns = shape
    if weight.dtype == "I8":
        expected = (rows, columns // FP4_BLOCK)
    else:
        expected = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
    if scale.dtype not in _SCALE_DTYPES:
        yield scale.name, f"must be {' or '.join(_SCALE_DTYPES)}; got {scale.dtype}"
    elif scale.shape != expected:
        yield scale.name, f"must be {list(expected)}; got {list(scale.shape)}"
