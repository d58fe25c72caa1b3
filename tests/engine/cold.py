"""What a prompt gives without an engine: one prefill in an empty cache, one step per token."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Result, Sampler, decode_limit
from tiny_models import tiny_model

CONTEXT = 600
GREEDY = Params(max_tokens=8, temperature=0.0)


def load(path: Path | None = None, **options: Any) -> Engine:
    """An engine of the tiny model."""
    options = {"context": CONTEXT, "slots": 2, "warm_up": False} | options
    return Engine.load(path or tiny_model().path, **options)


def cold_tokens(engine: Engine, prompt: Sequence[int], params: Params) -> list[int]:
    """The tokens of a generation that nothing was computed for before."""
    model, tokenizer = engine.model, engine.tokenizer
    stops = tokenizer.stop_ids | set(params.stop_ids)
    limit = decode_limit(params.max_tokens, context=engine.info.context, prompt_tokens=len(prompt))
    cache = model.make_cache(engine.info.context)
    sampler = Sampler(params, engine.config.vocab)
    state = model.prefill(list(prompt), cache)
    while True:
        logits = np.array(model.logits(model.last_token_state(state))[0])
        token = sampler.draw(logits)
        if token in stops or len(sampler.tokens) == limit:
            return sampler.tokens
        state = model.step(token, cache)


def check_cold(engine: Engine, result: Result, params: Params) -> None:
    """A result is what its prompt gives without anything that was computed before it."""
    assert list(result.tokens) == cold_tokens(engine, result.prompt, params)


def random_prompt(n: int, seed: int = 0) -> list[int]:
    """Ordinary ids of the tiny model's vocabulary."""
    return [int(t) for t in np.random.default_rng(seed).integers(3, 900, n)]


def script(tokens: Sequence[int], vocab: int) -> Callable[[Sequence[int]], np.ndarray | None]:
    """A mask that leaves nothing but the next of some tokens."""

    def only_next(generated: Sequence[int]) -> np.ndarray | None:
        if len(generated) >= len(tokens):
            return None
        mask = np.zeros(vocab, bool)
        mask[tokens[len(generated)]] = True
        return mask

    return only_next
