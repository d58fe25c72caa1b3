"""Hugging Face transformers on torch's CPU kernels, with the file's weights decoded."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DeepseekV4ForCausalLM, DynamicCache
from transformers.initialization import no_init_weights

from benchmarks.peers.engines import Logits, Setting
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf import GGUFFile, dequantize
from tools.transformers_model import translate, translate_config

# Its attention makes a matrix of all heads, tokens of a call and rows.
CHUNK_TOKENS = 512


class DecodedTensors(Mapping[str, NDArray[Any]]):
    """The file's tensors, each decoded when it is asked for: all at once are twice the model."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file

    def __getitem__(self, name: str) -> NDArray[Any]:
        info, raw = self._file.tensors[name], self._file.raw(name)
        if info.format == "i32":
            return raw.view(np.int32).reshape(info.shape)
        return dequantize(raw, info.format, info.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.tensors)

    def __len__(self) -> int:
        return len(self._file.tensors)


class Transformers:
    """One cache of the model."""

    def __init__(self, model: DeepseekV4ForCausalLM) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)

    def prefill(self, ids: Sequence[int]) -> Logits:
        self._cache = DynamicCache(config=self._model.config)
        for first in range(0, len(ids), CHUNK_TOKENS):
            logits = self._read(ids[first : first + CHUNK_TOKENS])
        return logits

    def step(self, token: int) -> Logits:
        return self._read([token])

    def _read(self, ids: Sequence[int]) -> Logits:
        with torch.inference_mode():
            read = self._model(
                torch.tensor([list(ids)]),
                cache=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
            logits: Logits = read.logits[0, -1].float().numpy()
        return logits


def load(path: Path, setting: Setting) -> Transformers:
    torch.set_num_threads(setting.threads)
    torch.set_default_dtype(getattr(torch, setting.variant))
    with GGUFFile(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config = translate_config(ModelConfig.from_metadata(file.metadata, shapes))
        with no_init_weights():
            model = DeepseekV4ForCausalLM(config).eval()
        fill(model, DecodedTensors(file))
    return Transformers(model)


def fill(model: DeepseekV4ForCausalLM, weights: Mapping[str, NDArray[Any]]) -> None:
    """Copy the weights into the model, one after the other."""
    waiting = dict(model.state_dict())
    for name, array in translate(weights):
        waiting.pop(name).copy_(torch.from_numpy(np.array(array)))
    if waiting:
        raise ValueError(f"each tensor of transformers must be in the file; not: {[*waiting]}")
