"""The model that the package ships: trained weights find what random ones hide."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from agreement import LOGIT_BOUND, largest_difference
from llama_oracle import llama_logits
from mlx_dsv4 import DEMO_MODEL
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.gguf.tiny import Formats, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary
from mlx_dsv4.reference.model import Trace, forward
from test_parity import run
from tiny_models import demo_model, demo_tokens
from transformers_oracle import transformers_logits

# 175 rows of 4, of which 64 are selected; five rows of 128.
TOKENS = 700


@cache
def reference() -> tuple[np.ndarray, Trace]:
    demo = demo_model()
    tokens = np.array(demo_tokens(TOKENS))
    return forward(demo.config, demo.weights, tokens, numerics="plain", dtype="float32", trace=True)


@cache
def ours() -> np.ndarray:
    chunks = [1, 3, 124, 2, 300, TOKENS - 430]
    return run(demo_model(), np.array(demo_tokens(TOKENS)), chunks, "plain", "float32")


def test_the_file_has_every_kind_of_layer_and_tensor() -> None:
    with GGUFFile(DEMO_MODEL) as file:
        formats = {info.format for info in file.tensors.values()}
    config = demo_model().config
    assert formats == {"q8_0", "mxfp4", "f16", "f32", "i32"}
    assert DEMO_MODEL.stat().st_size <= 12_000_000
    assert config.ratios == (0, 0, 4, 128, 4, 128)
    assert 0 < config.hash_layers < config.layers


def test_the_indexers_choose_and_attention_reads_what_they_choose() -> None:
    _, trace = reference()
    for selected in trace.selected.values():
        visible = (np.arange(TOKENS) + 1) // 4
        chosen = (selected >= 0).sum(1)
        assert (visible - chosen)[-1] == TOKENS // 4 - 64
        newest = [set(range(n - 64, n)) for n in visible[-100:]]
        assert all(set(row) != rows for row, rows in zip(selected[-100:], newest, strict=True))


def test_logits_equal_the_numpy_model() -> None:
    theirs, trace = reference()
    assert largest_difference(ours(), theirs, trace.margin()) <= LOGIT_BOUND


@pytest.mark.oracle
def test_logits_equal_transformers() -> None:
    demo, (_, trace) = demo_model(), reference()
    theirs = transformers_logits(demo.config, demo.weights, demo_tokens(TOKENS))
    assert largest_difference(ours(), theirs, trace.margin()) <= LOGIT_BOUND


@pytest.mark.oracle
def test_logits_equal_llama_on_decoded_weights(tmp_path: Path) -> None:
    demo, path = demo_model(), tmp_path / "decoded.gguf"
    # llama.cpp rounds activations where weights are packed.
    write_model(path, demo.config, demo.weights, Formats(), make_vocabulary(demo.config.vocab))
    theirs = llama_logits(path, np.array(demo_tokens(TOKENS)))
    assert largest_difference(ours(), theirs, reference()[1].margin()) <= LOGIT_BOUND


def test_official_numerics_equal_the_numpy_model() -> None:
    """Codes that fall the other way within rounding leave half of the tokens as they are."""
    demo, tokens = demo_model(), np.array(demo_tokens(TOKENS))
    official = run(demo, tokens, [TOKENS], "official", "float32")
    theirs = forward(demo.config, demo.weights, tokens, numerics="official", dtype="float32")
    worst = np.abs(official - theirs).max(1)
    assert np.median(worst) <= 10 * LOGIT_BOUND
    assert np.median(np.abs(official - ours()).max(1)) > 100 * LOGIT_BOUND


def nats(logits: np.ndarray, tokens: np.ndarray) -> float:
    """What a token of a text costs, on average."""
    scores = logits[:-1].astype(np.float64)
    most = scores.max(1)
    total = most + np.log(np.exp(scores - most[:, None]).sum(1))
    return float((total - scores[np.arange(len(tokens) - 1), tokens[1:]]).mean())


def test_it_has_learnt_python() -> None:
    """A text that it has not seen costs much less than its tokens in another order."""
    tokens = np.array(demo_tokens(TOKENS))
    shuffled = np.random.default_rng(0).permutation(tokens)
    other = run(demo_model(), shuffled, [TOKENS], "plain", "float32")
    assert nats(ours(), tokens) + 2 < nats(other, shuffled)
