"""Bits per byte of held-out text: of the trained model in torch, and of the engine."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DeepseekV4ForCausalLM

from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.model import Model, Numerics, load_weights
from mlx_dsv4.text import Tokenizer
from tools.train_demo.model import set_sparse

LONGEST = 4096
BOS = 0

Ids = NDArray[np.int64]


def long_documents(stream: Path, most: int) -> list[Ids]:
    """The first ``LONGEST`` tokens of each file in a stream that has as many, BOS first."""
    ids = np.load(stream).astype(np.int64)
    documents = np.split(ids, np.flatnonzero(ids == BOS)[1:])
    return [document[:LONGEST] for document in documents if len(document) >= LONGEST][:most]


def pieces(document: Ids, context: int) -> list[Ids]:
    """The same text in rows of ``context`` tokens, each of which is read without the others."""
    return np.split(document, LONGEST // context)


class Meter:
    """Adds up what tokens cost and how many bytes they stand for.

    A row's first token is not predicted. So that every context has the same bytes, no multiple of
    the shortest context counts.

    Args:
        tokenizer: Of the model.
        shortest: Of the contexts that are compared.
    """

    def __init__(self, tokenizer: Tokenizer, shortest: int) -> None:
        self._sizes = np.array([len(tokenizer.bytes_of(i)) for i in range(tokenizer.vocab_size)])
        self._shortest = shortest
        self._nats, self._bytes = 0.0, 0

    def add(self, row: Ids, logits: NDArray[np.float32]) -> None:
        """Count a row by its logits ``[T, vocab]``."""
        scores = logits.astype(np.float64)[:-1]
        scores -= scores.max(1, keepdims=True)
        chosen = np.take_along_axis(scores, row[1:, None], 1)[:, 0]
        nats = np.log(np.exp(scores).sum(1)) - chosen
        counts = np.arange(1, len(row)) % self._shortest != 0
        self._nats += float(nats[counts].sum())
        self._bytes += int(self._sizes[row[1:]][counts].sum())

    @property
    def bits_per_byte(self) -> float:
        return self._nats / math.log(2) / self._bytes


def torch_logits(model: DeepseekV4ForCausalLM, row: Ids) -> NDArray[np.float32]:
    with torch.no_grad():
        logits: Tensor = model(torch.from_numpy(row)[None], use_cache=False).logits
    return logits[0].numpy()


def load(path: Path, numerics: Numerics) -> Model:
    with GGUFFile(path) as file:
        return Model(load_weights(file), numerics=numerics, device=mx.Device(mx.cpu, 0))


def engine_logits(
    model: Model, row: Ids, chunks: Sequence[int], *, row_dtype: str = "bfloat16"
) -> NDArray[np.float32]:
    """Logits of a row that is read in calls of the given lengths, repeated to its end."""
    cache, at = model.make_cache(len(row), row_dtype=row_dtype), 0
    parts: list[NDArray[np.float32]] = []
    while at < len(row):
        n = chunks[len(parts) % len(chunks)]
        parts.append(np.array(model.logits(model.prefill(row[at : at + n].tolist(), cache))))
        at += n
    return np.concatenate(parts)


@contextmanager
def without_rows(model: DeepseekV4ForCausalLM, ratios: Sequence[int]) -> Iterator[None]:
    """Attention that reads the window alone in the layers of these ratios."""

    def hide(_: nn.Module, args: object, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        rows, bias = output
        if bias is None:
            raise ValueError("a row must have more than one token")
        return rows, torch.full_like(bias, -torch.inf)

    attentions = (layer.self_attn for layer in model.model.layers)
    compressors = [a.compressor for a in attentions if a.compressor is not None]
    chosen = [c for c in compressors if c.compress_rate in ratios]
    with _hooks([c.register_forward_hook(hide) for c in chosen]):
        yield


@contextmanager
def random_rows(model: DeepseekV4ForCausalLM, seed: int = 0) -> Iterator[None]:
    """Selection of as many visible rows as the indexer selects, by lot."""
    lot = torch.Generator().manual_seed(seed)

    def shuffle(_: nn.Module, args: object, scores: Tensor) -> Tensor:
        return torch.rand(scores.shape, generator=lot)

    scorers = [indexer.scorer for indexer in _indexers(model)]
    with _hooks([scorer.register_forward_hook(shuffle) for scorer in scorers]):
        yield


@contextmanager
def newest_rows(model: DeepseekV4ForCausalLM) -> Iterator[None]:
    """Selection of the newest visible rows instead of the indexer's."""

    def by_age(_: nn.Module, args: object, scores: Tensor) -> Tensor:
        return torch.arange(scores.shape[-1], dtype=scores.dtype).expand_as(scores)

    scorers = [indexer.scorer for indexer in _indexers(model)]
    with _hooks([scorer.register_forward_hook(by_age) for scorer in scorers]):
        yield


@contextmanager
def all_rows(model: DeepseekV4ForCausalLM) -> Iterator[None]:
    """Attention that reads every visible row."""
    set_sparse(model, sparse=False)
    yield
    set_sparse(model, sparse=True)


def _indexers(model: DeepseekV4ForCausalLM) -> list[Any]:
    compressors = (layer.self_attn.compressor for layer in model.model.layers)
    return [c.indexer for c in compressors if hasattr(c, "indexer")]


@contextmanager
def _hooks(handles: list[torch.utils.hooks.RemovableHandle]) -> Iterator[None]:
    yield
    for handle in handles:
        handle.remove()
