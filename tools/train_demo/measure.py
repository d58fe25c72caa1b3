"""The tables of docs/demo-model.md: what the trained model knows, and what the file keeps of it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.model import Numerics
from mlx_dsv4.text import Tokenizer
from tools.train_demo import bits
from tools.train_demo.export import stored_state

CONTEXTS = (256, 1024, 4096)
CHUNKS = {"one call": (4096,), "calls of 1 to 509": (1, 2, 5, 128, 509, 3, 127, 64)}
Logits = Callable[[bits.Ids], NDArray[np.float32]]


def measure(
    prepared: Path, weights: Path | None, path: Path, n: int, *, text: str = "held_out"
) -> Iterator[tuple[str, list[float]]]:
    """Bits per byte on ``n`` files, one line for each way to compute them.

    Args:
        prepared: Folder with the tokens and transformers' config.
        weights: ``weights.pt`` of the training; None measures the file alone.
        path: The GGUF file that was exported.
        n: Files, of the first 4,096 tokens each.
        text: Stream that they are from: "held_out", or one that was trained on.

    Yields:
        (what, bits per byte for each of :data:`CONTEXTS`).
    """
    documents = bits.long_documents(prepared / f"{text}.npy", n)
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)

    def line(logits: Logits) -> list[float]:
        return [_bits_per_byte(documents, tokenizer, context, logits) for context in CONTEXTS]

    if weights is not None:
        state = torch.load(weights, map_location="cpu", weights_only=True)
        trained = _transformers(prepared, state)
        yield "torch, weights as trained", line(partial(bits.torch_logits, trained))
    stored = _transformers(prepared, stored_state(path))
    for name, change in _ablations(stored).items():
        with change:
            yield f"torch, weights of the file{name}", line(partial(bits.torch_logits, stored))
    modes: tuple[Numerics, ...] = ("plain", "official")
    for numerics in modes:
        model = bits.load(path, numerics)
        for name, chunks in CHUNKS.items():
            figures = line(partial(bits.engine_logits, model, chunks=chunks))
            yield f"engine, {numerics} numerics, {name}", figures


def _bits_per_byte(
    documents: list[bits.Ids], tokenizer: Tokenizer, context: int, logits: Logits
) -> float:
    meter = bits.Meter(tokenizer, min(CONTEXTS))
    for document in documents:
        for row in bits.pieces(document, context):
            meter.add(row, logits(row))
    return meter.bits_per_byte


def _ablations(model: DeepseekV4ForCausalLM) -> dict[str, AbstractContextManager[None]]:
    return {
        "": nullcontext(),
        ", all rows instead of 64": bits.all_rows(model),
        ", the newest 64 rows instead of the indexer's": bits.newest_rows(model),
        ", 64 rows by lot instead of the indexer's": bits.random_rows(model),
        ", no rows of 4": bits.without_rows(model, (4,)),
        ", no rows of 128": bits.without_rows(model, (128,)),
        ", no rows": bits.without_rows(model, (4, 128)),
    }


def _transformers(prepared: Path, state: dict[str, torch.Tensor]) -> DeepseekV4ForCausalLM:
    config = DeepseekV4Config.from_pretrained(prepared)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = DeepseekV4ForCausalLM(config).float().eval()
    model.load_state_dict(state, strict=True)
    return model
