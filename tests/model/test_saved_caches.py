"""Caches on disk: a model that loads one goes on as if it had never stopped."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlx_dsv4.cache import CacheStore, save_cache
from mlx_dsv4.cache.fingerprint import differences
from mlx_dsv4.errors import SnapshotError
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.model import Model
from tiny_models import random_tokens, tiny_model

TINY = tiny_model()
TOKENS = random_tokens(TINY.config, 600)


@pytest.fixture(scope="module", params=["official", "plain"])
def model(request: pytest.FixtureRequest) -> Model:
    return TINY.load(request.param)


@pytest.fixture(scope="module")
def uninterrupted(model: Model) -> np.ndarray:
    """Hidden states of every token."""
    return np.array(model.prefill(TOKENS, model.make_cache(600)))


@pytest.mark.parametrize("position", [1, 3, 4, 5, 63, 64, 65, 127, 128, 129, 257, 384, 511, 513])
def test_a_loaded_cache_goes_on_to_the_bit(
    model: Model, uninterrupted: np.ndarray, tmp_path: Path, position: int
) -> None:
    cache = model.make_cache(520)
    state = model.prefill(TOKENS[:position], cache)
    logits = np.array(model.logits(model.last_token_state(state)))[0]
    snapshot = cache.snapshot()
    model.prefill(TOKENS[7:10], cache)  # what comes later is not in the file
    path = tmp_path / "cache"
    save_cache(path, cache, tokens=TOKENS[:position], logits=logits, snapshot=snapshot)
    loaded = model.load_cache(path, 600)
    assert loaded.tokens == TOKENS[:position]
    np.testing.assert_array_equal(loaded.logits, logits)
    rest = model.prefill(TOKENS[position:], loaded.cache)
    np.testing.assert_array_equal(np.array(rest), uninterrupted[position:])


def test_float32_rows(tmp_path: Path) -> None:
    model = TINY.load("plain")
    whole = model.make_cache(200, row_dtype="float32")
    expected = np.array(model.prefill(TOKENS[:200], whole))
    cache = model.make_cache(200, row_dtype="float32")
    model.prefill(TOKENS[:130], cache)
    save_cache(tmp_path / "cache", cache, tokens=TOKENS[:130])
    loaded = model.load_cache(tmp_path / "cache", 200, row_dtype="float32")
    rest = model.prefill(TOKENS[130:200], loaded.cache)
    np.testing.assert_array_equal(np.array(rest), expected[130:])


def test_a_prompt_continues_from_its_longest_saved_prefix(
    model: Model, uninterrupted: np.ndarray, tmp_path: Path
) -> None:
    store = CacheStore(tmp_path / "store", 1 << 30)
    cache = model.make_cache(600)
    for start, end in ((0, 100), (100, 260), (260, 300)):
        model.prefill(TOKENS[start:end], cache)
        store.save(cache, tokens=TOKENS[:end])
    prompt = TOKENS[:280] + TOKENS[:50]
    found = store.load(prompt, model.plan_cache(600), model.fingerprint())
    assert found is not None
    assert found.tokens == TOKENS[:260]
    rest = model.prefill(TOKENS[260:280], found.cache)
    np.testing.assert_array_equal(np.array(rest), uninterrupted[260:280])


def test_a_model_of_other_weights_or_words_is_refused(tmp_path: Path) -> None:
    model = TINY.load("official")
    cache = model.make_cache(20)
    model.prefill(TOKENS[:9], cache)
    path = tmp_path / "cache"
    save_cache(path, cache, tokens=TOKENS[:9])
    TINY.load("official").load_cache(path, 20)
    for other, message in (
        (tiny_model(seed=1).load("official"), r"cache: fingerprint\.model must be '\w+'; got"),
        (TINY.load("plain"), r"cache: fingerprint\.numerics must be 'plain'; got 'official'"),
        (tiny_model(top_k=17).load("official"), r"fingerprint\.config\.top_k must be 17; got 16"),
    ):
        with pytest.raises(SnapshotError, match=message):
            other.load_cache(path, 20)
        assert other.fingerprint() != model.fingerprint()


def test_models_of_one_file_share_a_fingerprint() -> None:
    fingerprint = TINY.load("official").fingerprint()
    assert TINY.load("official").fingerprint() == fingerprint
    assert (fingerprint.arithmetic, fingerprint.row_format) == ("cpu 1", "bfloat16")


@pytest.mark.parametrize(
    ("tensor", "field"),
    [
        ("token_embd.weight", "model"),
        ("blk.3.attn_q_b.weight", "model"),
        ("blk.5.ffn_down_exps.weight", "model"),
        ("blk.4.attn_sinks.weight", "model"),
        ("blk.2.indexer_compressor_ape.weight", "model"),
        (None, "tokenizer"),
    ],
)
def test_one_tensor_or_token_makes_another_model(
    tmp_path: Path, tensor: str | None, field: str
) -> None:
    data = TINY.path.read_bytes()
    if tensor is None:
        at = data.index("<｜User｜>".encode()) + 5
    else:
        with GGUFFile(TINY.path) as file:
            at = file.tensors[tensor].offset
    path = tmp_path / "model.gguf"
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    other = replace(TINY, path=path).load("official").fingerprint()
    mine = TINY.load("official").fingerprint()
    assert [d.split()[0] for d in differences(mine.fields(), other.fields())] == [field]
