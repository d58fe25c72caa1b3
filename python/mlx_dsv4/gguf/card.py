"""The model card of a GGUF file: what it holds, and what keeps it from running."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlx_dsv4.config import READ_KEYS, ModelConfig, key_prefix
from mlx_dsv4.errors import ConfigError, UnsupportedModelError
from mlx_dsv4.gguf.names import TensorReport, compare_tensors, weight_bytes
from mlx_dsv4.gguf.reader import GGUFFile
from mlx_dsv4.gguf.release import Release, release_of

_ROW_BYTES = 2  # bfloat16
_STATE_BYTES = 4  # float32, values and scores each


@dataclass(frozen=True, slots=True)
class FormatTotal:
    """How much of a file is stored in one block format."""

    n_tensors: int
    n_elements: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A file at a glance, whether it can run or not.

    Args:
        path: Of the file.
        n_bytes: Of the file.
        version: Of the GGUF format.
        name: ``general.name``, or the file's name.
        architecture: ``general.architecture``, or an empty string.
        release: Of DeepSeek-V4-Flash, or None where nothing tells.
        config: The model's numbers, or None where they cannot be read.
        config_error: Why they cannot, or an empty string.
        formats: Totals per block format, the largest first.
        file_backed_bytes: Of weights that stay in the file while the model runs.
        anonymous_bytes: Of small tensors, decoded when the model is loaded.
        kv_fixed_bytes: Of a cache at any context from the window up (bfloat16 rows).
        kv_bytes_per_token: What each token of context adds.
        tensors: What is missing, wrong, unsupported, unmatched and ignored; None without config.
        unread_keys: Keys of the architecture that nothing reads.
    """

    path: Path
    n_bytes: int
    version: int
    name: str
    architecture: str
    release: Release | None
    config: ModelConfig | None
    config_error: str
    formats: Mapping[str, FormatTotal]
    file_backed_bytes: int
    anonymous_bytes: int
    kv_fixed_bytes: int
    kv_bytes_per_token: float
    tensors: TensorReport | None
    unread_keys: tuple[str, ...]

    @property
    def runs(self) -> bool:
        """Whether nothing that the header says keeps the file from loading.

        ``mlx-dsv4 inspect`` also looks at the tokenizer, at values and at what kernels serve.
        """
        report = self.tensors
        return report is not None and not (report.missing or report.wrong or report.unsupported)

    @property
    def quantization(self) -> str:
        """The block formats that hold most of the file, the largest first, joined by +."""
        most = max((total.n_bytes for total in self.formats.values()), default=0)
        return " + ".join(f for f, total in self.formats.items() if total.n_bytes * 20 >= most)

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per element over all tensors."""
        elements = sum(total.n_elements for total in self.formats.values())
        return 8 * sum(total.n_bytes for total in self.formats.values()) / max(elements, 1)


def model_card(file: GGUFFile) -> ModelCard:
    """Describe a file whose header could be parsed, loadable or not."""
    metadata = file.metadata
    config, release, error = None, None, ""
    try:
        release = release_of(metadata, file.path)
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config = ModelConfig.from_metadata(metadata, shapes)
    except (ConfigError, UnsupportedModelError) as problem:
        error = str(problem)
    fixed, per_token = cache_bytes(config) if config else (0, 0.0)
    in_file, decoded = weight_bytes(config, file.tensors) if config else (0, 0)
    prefix = key_prefix(metadata)
    return ModelCard(
        path=file.path,
        n_bytes=file.n_bytes,
        version=file.version,
        name=str(metadata.get("general.name") or file.path.stem),
        architecture=str(metadata.get("general.architecture") or ""),
        release=release,
        config=config,
        config_error=error,
        formats=_format_totals(file),
        file_backed_bytes=in_file,
        anonymous_bytes=decoded,
        kv_fixed_bytes=fixed,
        kv_bytes_per_token=per_token,
        tensors=compare_tensors(config, file.tensors) if config else None,
        unread_keys=tuple(
            key
            for key in metadata
            if key.startswith(prefix) and key.removeprefix(prefix) not in READ_KEYS
        ),
    )


def _format_totals(file: GGUFFile) -> dict[str, FormatTotal]:
    counts: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    n_bytes: Counter[str] = Counter()
    for info in file.tensors.values():
        counts[info.format] += 1
        n_bytes[info.format] += info.n_bytes
        elements[info.format] += info.n_elements
    return {
        name: FormatTotal(counts[name], elements[name], total)
        for name, total in n_bytes.most_common()
    }


def cache_bytes(config: ModelConfig) -> tuple[int, float]:
    """Bytes of a session's cache with bfloat16 rows: fixed, and per token of context.

    Fixed are the windows and the compressor states (values and scores in float32); compressed
    and index rows grow with the context, one per span.
    """
    fixed, per_token = 0, 0.0
    for ratio in config.ratios:
        fixed += config.window * config.head_dim * _ROW_BYTES
        dims = [config.head_dim] if ratio else []
        if ratio == 4:
            dims.append(config.indexer_dim)
        # A span of 4 overlaps the one before: its state holds two spans of double width.
        overlap = 2 if ratio == 4 else 1
        for dim in dims:
            fixed += 2 * (overlap * ratio) * (overlap * dim) * _STATE_BYTES
            per_token += dim * _ROW_BYTES / ratio
    return fixed, per_token
