"""The NumPy model against transformers and llama.cpp: three implementations, one model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from agreement import LOGIT_BOUND, largest_difference
from llama_oracle import llama_logits
from mlx_dsv4 import reference
from mlx_dsv4.gguf.tiny import TWICE_TOKEN, Formats, random_weights, tiny_config, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary
from mlx_dsv4.reference.model import forward
from small_cases import CONFIGS, SMALL, TOKENS, Case, make_case, make_tokens
from transformers_oracle import build_model, transformers_logits

pytestmark = pytest.mark.oracle


@pytest.fixture(params=list(CONFIGS))
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


def test_the_cases_exercise_the_model(case: Case) -> None:
    assert 2 < case.logits.std() < 4
    for layer, selected in case.trace.selected.items():
        visible = (np.arange(TOKENS) + 1) // 4
        left_out = visible - (selected >= 0).sum(1)
        assert left_out[-1] >= 50, f"layer {layer} selects all rows"
    clamp = case.config.clamp[0]
    assert set(case.config.clamp) == set(case.config.clamp_shared) == {clamp}
    assert (case.tokens == TWICE_TOKEN).any()


def test_frequencies_equal_those_of_transformers(case: Case) -> None:
    config, rope = case.config, build_model(case.config, case.weights).model.rotary_emb
    main = reference.inverse_frequencies(config.rope_dim, config.rope_base)
    compress = reference.inverse_frequencies(
        config.rope_dim,
        config.compress_rope_base,
        factor=config.yarn_factor,
        original_context=config.yarn_original_context,
        beta_fast=config.yarn_beta_fast,
        beta_slow=config.yarn_beta_slow,
    )
    # Theirs is a chain of 4 float32 operations.
    np.testing.assert_allclose(rope.main_inv_freq.numpy(), main, rtol=4 * 2.0**-23)
    np.testing.assert_allclose(rope.compress_inv_freq.numpy(), compress, rtol=4 * 2.0**-23)
    assert rope.compress_attention_scaling == 1


def cut(sizes: Sequence[int]) -> list[int]:
    """Chunk lengths: ``sizes``, then the rest."""
    return [*sizes, TOKENS - sum(sizes)]


@pytest.mark.parametrize(
    "chunks",
    [None, cut([1, 2, 4, 120, 1, 1, 130]), cut([128, 128])],
    ids=["one-shot", "uneven-chunks", "aligned-chunks"],
)
def test_logits_equal_those_of_transformers(case: Case, chunks: list[int] | None) -> None:
    theirs = transformers_logits(case.config, case.weights, case.tokens, chunks)
    assert case.difference(theirs) <= LOGIT_BOUND


def test_logits_equal_those_of_transformers_token_by_token() -> None:
    case = make_case("no-hash-layer")
    theirs = transformers_logits(case.config, case.weights, case.tokens, [1] * TOKENS)
    assert case.difference(theirs) <= LOGIT_BOUND


@pytest.mark.parametrize("name", ["every-kind-of-layer", "other-numbers"])
def test_last_tokens_equal_those_of_transformers_token_by_token(name: str) -> None:
    """The prompt goes in one call; single tokens then cross the end of the 2nd 128-span."""
    case, prompt = make_case(name), 250
    chunks = [prompt] + [1] * (TOKENS - prompt)
    theirs = transformers_logits(case.config, case.weights, case.tokens, chunks)
    assert case.difference(theirs) <= LOGIT_BOUND


def test_logits_equal_those_of_llama(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, case.config, case.weights, Formats(), make_vocabulary(case.config.vocab))
    assert case.difference(llama_logits(path, case.tokens)) <= LOGIT_BOUND


def test_layers_with_their_own_clamps_equal_llama(tmp_path: Path) -> None:
    """transformers has one clamp; llama.cpp reads one of every layer, routed and shared."""
    config = tiny_config(**SMALL, heads=4, head_dim=96, ratios=(4, 128), hash_layers=1,
                         clamp=(0.5, 1.5), clamp_shared=(2.0, 0.25))  # fmt: skip
    weights, tokens = random_weights(config, seed=0), make_tokens(config, 140)
    path = tmp_path / "model.gguf"
    write_model(path, config, weights, Formats(), make_vocabulary(config.vocab))
    ours, trace = forward(config, weights, tokens, numerics="plain", dtype="float32", trace=True)
    theirs = llama_logits(path, tokens)
    assert largest_difference(ours, theirs, trace.margin()) <= LOGIT_BOUND
    swapped = tiny_config(**SMALL, heads=4, head_dim=96, ratios=(4, 128), hash_layers=1,
                          clamp=config.clamp_shared, clamp_shared=config.clamp)  # fmt: skip
    wrong = forward(swapped, weights, tokens, numerics="plain", dtype="float32")
    assert np.abs(wrong - theirs).max() > LOGIT_BOUND


def test_llama_reports_a_file_it_cannot_load(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(RuntimeError, match=r"llama\.cpp"):
        llama_logits(path, [1, 2])


def test_prefixes_give_the_same_logits() -> None:
    case = make_case("no-hash-layer")
    ours = forward(case.config, case.weights, case.tokens[:129], numerics="plain", dtype="float32")
    # Sums over more rows may run in another order: float64 rounding, then float32 rows.
    np.testing.assert_allclose(ours, case.logits[:129], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("numerics", "dtype"), [("exact", "float32"), ("plain", "float16")])
def test_words_that_name_nothing_are_refused(numerics: str, dtype: str) -> None:
    case = make_case("no-hash-layer")
    with pytest.raises(ValueError, match=r"must be .* or .*; got (exact|float16)"):
        forward(case.config, case.weights, case.tokens[:5], numerics=numerics, dtype=dtype)
