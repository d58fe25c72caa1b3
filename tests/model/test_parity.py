"""The model on its kernels against transformers, llama.cpp and the NumPy model.

Chunkings of this model agree to the bit (`test_one_answer.py`), so one of them is compared with
the others' calls in one piece, in chunks and token by token.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from agreement import LOGIT_BOUND, largest_difference
from llama_oracle import llama_logits
from small_cases import CONFIGS, TOKENS, make_tokens
from tiny_models import FLOAT32, TinyModel, tiny_model
from transformers_oracle import transformers_logits

from mlx_dsv4.gguf.tiny import Formats
from mlx_dsv4.model import Numerics
from mlx_dsv4.reference.model import forward

Q8_0 = Formats(dense="q8_0", embedding="q8_0", output="q8_0", router="bf16", experts="q8_0")
MXFP4 = Formats(dense="q8_0", experts="mxfp4", embedding="f16", output="bf16", router="f16")


@dataclass(frozen=True)
class Parity:
    """A file, a prompt, this model's logits, and how near each token's choices were."""

    tiny: TinyModel
    tokens: np.ndarray
    logits: np.ndarray
    margin: np.ndarray

    def difference(self, theirs: np.ndarray) -> float:
        return largest_difference(self.logits, theirs, self.margin)


def run(
    tiny: TinyModel, tokens: np.ndarray, chunks: list[int], numerics: Numerics, row_dtype: str
) -> np.ndarray:
    model = tiny.load(numerics)
    cache = model.make_cache(len(tokens), row_dtype=row_dtype)
    parts = np.split(tokens, np.cumsum(chunks)[:-1])
    states = [model.prefill(part.tolist(), cache) for part in parts]
    return np.array(model.logits(mx.concatenate(states)))


@cache
def parity(name: str, formats: Formats = FLOAT32) -> Parity:
    """One of :data:`CONFIGS` with the published window, in plain numerics and float32 rows."""
    tiny = tiny_model(3, formats, **(CONFIGS[name] | {"window": 128}))
    tokens = make_tokens(tiny.config, TOKENS)
    logits = run(tiny, tokens, [1, 2, 4, 120, 1, 1, 130, TOKENS - 259], "plain", "float32")
    _, trace = forward(
        tiny.config, tiny.weights, tokens, numerics="plain", dtype="float32", trace=True
    )
    return Parity(tiny, tokens, logits, trace.margin())


@pytest.fixture(params=list(CONFIGS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.oracle
@pytest.mark.parametrize("chunks", [None, [128, 100, TOKENS - 228]], ids=["at-once", "chunked"])
def test_transformers(name: str, chunks: list[int] | None) -> None:
    case = parity(name)
    theirs = transformers_logits(case.tiny.config, case.tiny.weights, case.tokens, chunks)
    assert 2 < case.logits.std() < 4
    assert case.difference(theirs) <= LOGIT_BOUND


@pytest.mark.oracle
def test_transformers_token_by_token() -> None:
    case = parity("no-hash-layer")
    theirs = transformers_logits(case.tiny.config, case.tiny.weights, case.tokens, [1] * TOKENS)
    assert case.difference(theirs) <= LOGIT_BOUND


@pytest.mark.oracle
def test_llama(name: str) -> None:
    case = parity(name)
    assert case.difference(llama_logits(case.tiny.path, case.tokens)) <= LOGIT_BOUND


@pytest.mark.oracle
@pytest.mark.parametrize("formats", [Q8_0, MXFP4], ids=["q8_0", "mxfp4"])
def test_packed_files_equal_their_decoded_weights(formats: Formats) -> None:
    case = parity("every-kind-of-layer", formats)
    theirs = transformers_logits(case.tiny.config, case.tiny.weights, case.tokens)
    assert case.difference(theirs) <= LOGIT_BOUND


def test_the_last_hidden_state_gives_the_last_logits(tmp_path: Path) -> None:
    case = parity("no-hash-layer")
    model = case.tiny.load("plain")
    cache = model.make_cache(TOKENS, row_dtype="float32")
    state = model.prefill(case.tokens.tolist(), cache)
    last = model.logits(model.last_token_state(state))
    np.testing.assert_array_equal(np.array(last), case.logits[-1:])


# A stored value within float32 rounding of a tie between two codes falls either way, and later
# tokens read the row it is in. bfloat16 rows have such ties in every row, E4M3 and E2M1 in some.
@pytest.mark.parametrize(
    ("numerics", "row_dtype", "median", "most"),
    [
        ("official", "float32", 0.02, 0.2),
        ("official", "bfloat16", 0.03, 0.3),
        ("plain", "bfloat16", 0.02, 0.1),
    ],
)
def test_rounded_rows_equal_the_numpy_model(
    name: str, numerics: Numerics, row_dtype: str, median: float, most: float
) -> None:
    tiny = parity(name).tiny
    tokens = make_tokens(tiny.config, TOKENS)
    ours = run(tiny, tokens, [TOKENS], numerics, row_dtype)
    theirs = forward(tiny.config, tiny.weights, tokens, numerics=numerics, dtype=row_dtype)
    worst = np.abs(ours - theirs).max(1)
    print(f"{numerics} {row_dtype}: {np.quantile(worst, [0.1, 0.5, 0.9, 0.99])}")
    assert np.quantile(worst, 0.5) <= median
    assert np.quantile(worst, 0.9) <= most


@pytest.mark.parametrize("numerics", ["official", "plain"])
def test_the_first_tokens_equal_the_numpy_model(name: str, numerics: Numerics) -> None:
    """Before a first tie is met, rounding is the same value by value."""
    tiny = parity(name).tiny
    tokens = make_tokens(tiny.config, TOKENS)
    ours = run(tiny, tokens[:1], [1], numerics, "float32")
    theirs = forward(tiny.config, tiny.weights, tokens[:1], numerics=numerics, dtype="float32")
    assert np.abs(ours - theirs).max() <= LOGIT_BOUND
