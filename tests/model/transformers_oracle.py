"""Logits of Hugging Face transformers' DeepSeek-V4, an implementation independent of ours.

By itself it computes plain numerics. Everything here is float32 on torch's CPU kernels.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from transformers import DeepseekV4ForCausalLM, DynamicCache

from mlx_dsv4.config import ModelConfig
from tools.transformers_model import translate, translate_config
from torch_round_trips import make_official


def transformers_logits(
    config: ModelConfig,
    weights: Mapping[str, np.ndarray],
    tokens: Sequence[int],
    chunks: Sequence[int] | None = None,
    *,
    numerics: str = "plain",
) -> np.ndarray:
    """Logits of every token, ``[T, V]`` float32.

    Args:
        config: All layers must clamp at the same value, the shared expert too.
        weights: GGUF name to array, as :func:`mlx_dsv4.gguf.tiny.random_weights` makes them.
        tokens: Ids.
        chunks: Lengths of the calls through transformers' cache, e.g. ``[1] * len(tokens)``;
            None is one call without a cache.
        numerics: "plain", or "official" with the hooks of :mod:`torch_round_trips`.
    """
    model = build_model(config, weights)
    if numerics == "official":
        make_official(model, config.rope_dim)
    ids = torch.tensor([list(tokens)])
    with torch.no_grad(), one_thread():
        if chunks is None:
            return model(ids, use_cache=False).logits[0].numpy()
        if sum(chunks) != ids.shape[1]:
            raise ValueError(f"chunks must add up to {ids.shape[1]} tokens; got {sum(chunks)}")
        cache = DynamicCache(config=model.config)
        parts = [
            model(part, cache=cache, use_cache=True).logits[0].numpy()
            for part in torch.split(ids, list(chunks), dim=1)
        ]
    return np.concatenate(parts)


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other cost more than products of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build_model(config: ModelConfig, weights: Mapping[str, np.ndarray]) -> DeepseekV4ForCausalLM:
    """The model with our weights; every tensor of either side is used exactly once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DeepseekV4ForCausalLM(translate_config(config)).float().eval()
    state = {name: torch.from_numpy(np.array(array)) for name, array in translate(weights)}
    model.load_state_dict(state, strict=True)
    return model
