"""Valid files of every dialect and block format, to be made wrong."""

import math
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np

import gguf
from fuzz.document import ARRAY, STRING, Document, Key, Tensor, read_document
from mlx_dsv4.config import RATIOS
from mlx_dsv4.errors import ConfigError
from mlx_dsv4.gguf import PACKED, block_shape
from mlx_dsv4.gguf.metadata import add_vocabulary
from mlx_dsv4.gguf.tiny import Formats, random_weights, tiny_config, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary

TYPE_IDS = {kind.name.lower(): int(kind) for kind in gguf.GGMLQuantizationType}

# The files of one model by name; a split one has several.
Files = Mapping[str, Document]

_U32, _FLOAT32 = 4, 6
_SMALL: dict[str, int] = {
    **{"vocab": 300, "hidden": 32, "heads": 2, "head_dim": 96, "rope_dim": 32, "q_rank": 32},
    **{"output_rank": 32, "output_groups": 2, "experts": 4, "expert_hidden": 32},
    **{"indexer_heads": 2, "indexer_dim": 32, "top_k": 2, "hash_layers": 1, "context": 512},
}
# Rows of whole blocks of 256.
_WIDE = _SMALL | {"hidden": 256, "q_rank": 256, "output_rank": 128, "expert_hidden": 256}

# Numbers that models may have, and that kernels may not serve.
_UNUSUAL: dict[str, tuple[int, ...]] = {
    **{"streams": (1, 2, 3, 5, 8, 9), "experts": (1, 2, 17, 40), "experts_used": (1, 3, 16, 17)},
    **{"hidden": (1, 16, 17, 48), "heads": (1, 3, 6, 9), "head_dim": (16, 32, 33, 64, 80, 160)},
    **{"rope_dim": (2, 16, 30, 32), "q_rank": (1, 7, 48), "output_rank": (1, 7, 48)},
    **{"output_groups": (1, 2, 3), "expert_hidden": (1, 7, 33, 64), "indexer_heads": (1, 3, 65)},
    **{"indexer_dim": (16, 32, 33, 48, 64, 256), "top_k": (1, 2**31 - 1), "context": (1, 2, 9)},
    **{"window": (1, 127, 129), "sinkhorn_iterations": (1, 3, 10_001), "hash_layers": (0, 2)},
}


@cache
def corpus() -> tuple[Files, ...]:
    """Every file set; runs in a second."""
    small = _model(_SMALL, (0, 4, 128), Formats(dense="q8_0", experts="mxfp4", embedding="f16"))
    return (
        {"small.gguf": small},
        {"early.gguf": _early_dialect(small)},
        {"wide.gguf": _coded(_model(_WIDE, (4,), Formats()))},
        {"unaligned.gguf": _unaligned(small)},
        {"values.gguf": _every_value_type()},
        {"vocabulary.gguf": _vocabulary()},
        _parts(small, metadata_alone=False),
        _parts(small, metadata_alone=True),
    )


def _written(write: Callable[[Path], None]) -> Document:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file.gguf"
        write(path)
        return read_document(path)


def _model(numbers: dict[str, int], ratios: tuple[int, ...], formats: Formats) -> Document:
    config = tiny_config(**numbers, ratios=ratios)
    weights, vocabulary = random_weights(config, 0), make_vocabulary(config.vocab)
    return _written(lambda path: write_model(path, config, weights, formats, vocabulary))


def unusual_model(rng: Random) -> Document:
    """A valid file of a model that nobody has made: some numbers are other than the tiny one's."""
    while True:
        changed = rng.sample(sorted(_UNUSUAL), rng.choice((1, 1, 2, 4)))
        numbers = _SMALL | {"experts": 18} | {name: rng.choice(_UNUSUAL[name]) for name in changed}
        ratios = tuple(rng.choice(RATIOS) for _ in range(rng.choice((1, 2, 3))))
        with suppress(ConfigError):
            return _model(numbers, ratios, Formats())


def _early_dialect(document: Document) -> Document:
    """The architecture string of early files, scalars for arrays, an alias, a count of tokens."""
    early = document.copy()
    for key in early.keys:
        key.name = key.name.replace(b"deepseek4.", b"deepseek-v4-flash.").replace(
            b"attention.compress_rope_freq_base", b"rope.freq_base_swa"
        )
        if b"swiglu_clamp" in key.name:
            key.type_id, key.body = _FLOAT32, struct.pack("<f", 2.5)
    dropped = (b"swiglu_clamp_shexp", b"embedding_length_out")
    early.keys = [key for key in early.keys if not key.name.endswith(dropped)]
    early.keys.append(Key(b"deepseek-v4-flash.vocab_size", _U32, struct.pack("<I", 300)))
    architecture = early.key("general.architecture")
    assert architecture is not None
    architecture.body = struct.pack("<Q", 17) + b"deepseek-v4-flash"
    early.version = 2
    return early


def _coded(document: Document) -> Document:
    """Matrices in every packed format in turn: random blocks, whose float16 scales are below 1."""
    rng = np.random.default_rng(0)

    def random_bytes(n: int) -> bytes:
        return (rng.integers(0, 256, n, np.uint8) & 0x3B).tobytes()

    formats = [format for format in PACKED if format not in ("f32", "f16", "bf16")]
    matrices = (t for t in document.tensors if len(t.dims) > 1 and t.dims[0] % 256 == 0)
    for number, tensor in enumerate(t for t in matrices if t.type_id == 0 and b"hc_" not in t.name):
        restore_as(tensor, formats[number % len(formats)], random_bytes)
    return document


def restore_as(tensor: Tensor, format: str, random_bytes: Callable[[int], bytes]) -> None:
    """Give a tensor another block format and random bytes, as many as its shape needs."""
    elements, n_bytes = block_shape(format)
    tensor.type_id = TYPE_IDS[format]
    tensor.data = random_bytes(math.prod(tensor.dims) // elements * n_bytes)


def _unaligned(document: Document) -> Document:
    """Tensors that begin at any byte."""
    packed = document.copy()
    packed.keys.insert(0, Key(b"general.alignment", _U32, struct.pack("<I", 1)))
    packed.keys.append(Key(b"odd", STRING, struct.pack("<Q", 0)))
    packed.alignment = 1
    packed.keys[-1].name += b"!" * (1 - packed.encode().header_end % 2)
    return packed


def _every_value_type() -> Document:
    keys = [Key(b"general.architecture", STRING, struct.pack("<Q", 4) + b"none")]
    layouts = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
    for type_id, code in {**layouts, 12: "d"}.items():
        value = struct.pack(f"<{code}", 1)
        keys.append(Key(f"scalar.{type_id}".encode(), type_id, value))
        array = struct.pack("<IQ", type_id, 3) + value * 3
        keys.append(Key(f"array.{type_id}".encode(), ARRAY, array))
    words = [word.encode() for word in ("", "a", "Ġthe", "模型")]
    texts = b"".join(struct.pack("<Q", len(word)) + word for word in words)
    keys.append(Key(b"words", ARRAY, struct.pack("<IQ", STRING, len(words)) + texts))
    tensors = [Tensor(f"t{n}".encode(), [32] * n, 0, bytes(4 * 32**n)) for n in (1, 2, 3)]
    return Document(keys, tensors)


def _vocabulary() -> Document:
    def write(path: Path) -> None:
        writer = gguf.GGUFWriter(path, "deepseek4")
        add_vocabulary(writer, make_vocabulary(4000))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()

    return _written(write)


def _parts(document: Document, *, metadata_alone: bool) -> Files:
    """The model in three files, as ``llama-gguf-split`` makes them."""
    n = len(document.tensors)
    cuts = (0, 0, n // 2, n) if metadata_alone else (0, n // 3, 2 * n // 3, n)
    parts = {}
    for number in range(3):
        place = {b"split.no": number, b"split.count": 3, b"split.tensors.count": n}
        keys = [Key(name, _U32, struct.pack("<I", value)) for name, value in place.items()]
        part = Document(keys, document.tensors[cuts[number] : cuts[number + 1]]).copy()
        if number == 0:
            part.keys = document.copy().keys + part.keys
        parts[f"small-{number + 1:05}-of-00003.gguf"] = part
    return parts
