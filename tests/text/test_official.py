"""Equality with the tokenizer DeepSeek publishes, on the vocabulary converters write."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers

import official
import text_corpus
from mlx_dsv4.text import Tokenizer
from mlx_dsv4.text.tokenizer import pre_tokenizer

USER_TEXTS = text_corpus.user_texts()
CONTROL_TEXTS = text_corpus.control_texts()


def differing(
    texts: list[str], ours: Callable[[str], list[int]], theirs: tokenizers.Tokenizer
) -> list[tuple[str, list[int], list[int]]]:
    """The first few texts on which two encoders disagree, with both results."""
    found = []
    for text in texts:
        a, b = ours(text), theirs.encode(text, add_special_tokens=False).ids
        if a != b:
            found.append((text, a, b))
    return found[:5]


def vocabulary_texts(theirs: tokenizers.Tokenizer, count: int) -> list[str]:
    """Texts of random ordinary tokens: they reach merges that prose does not."""
    rng = random.Random(22)
    lines = []
    for _ in range(count):
        ids = [rng.randrange(3, 128000) for _ in range(rng.randint(1, 12))]
        lines.append(theirs.decode(ids, skip_special_tokens=False))
    return lines


def test_the_corpus_is_large_and_has_no_repeats_to_inflate_it():
    assert len(set(USER_TEXTS)) >= 4000
    assert len(set(CONTROL_TEXTS)) >= 1000


def test_user_text_encodes_as_officially(tokenizer: Tokenizer, reads_plain, reads_added):
    texts = USER_TEXTS + vocabulary_texts(reads_plain, 1500)
    assert differing(texts, tokenizer.encode, reads_plain) == []
    # Without a control string the published tokenizer and the plain one are the same.
    added = [entry.content for entry in reads_added.get_added_tokens_decoder().values()]
    clean = [text for text in texts if not any(token in text for token in added)]
    assert len(set(clean)) >= 4000
    assert differing(clean, tokenizer.encode, reads_added) == []


def test_pieces_are_official_whether_or_not_a_merge_would_cross_them(reads_plain):
    ours, theirs = pre_tokenizer(), reads_plain.pre_tokenizer
    codes = {
        *range(0x3400),
        *range(0x4DFE, 0x4E03),
        *range(0x9FA0, 0xA000),
        *range(0xE000, 0x10000),
    }
    codes |= {*range(0x3400, 0xD800, 37), *range(0x10000, 0x110000, 257)}
    contexts = [f"a{chr(c)}中{chr(c)} {chr(c)}b1{chr(c)}\n" for c in sorted(codes)]
    # One text per 64 contexts: a call costs more than the characters in it.
    joined = ["".join(contexts[i : i + 64]) for i in range(0, len(contexts), 64)]
    for text in joined + USER_TEXTS:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


def test_control_text_encodes_as_officially(tokenizer: Tokenizer, reads_plain, reads_added):
    def special(text: str) -> list[int]:
        return tokenizer.encode(text, special=True)

    assert differing(CONTROL_TEXTS + USER_TEXTS[::4], special, reads_added) == []
    assert differing(CONTROL_TEXTS, tokenizer.encode, reads_plain) == []


def test_every_added_token_is_read_officially(tokenizer: Tokenizer, tokenizer_json, reads_added):
    for entry in tokenizer_json["added_tokens"]:
        token = entry["content"]
        assert tokenizer.encode(token, special=True) == [entry["id"]]
        assert tokenizer.id_of(token) == entry["id"]
        text = f"a{token}1{token[:-1]}"
        expected = reads_added.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, special=True) == expected


def test_every_id_has_its_official_string_and_text(
    tokenizer: Tokenizer, tokenizer_json, reads_added
):
    vocabulary = reads_added.get_vocab(with_added_tokens=True)
    assert tokenizer.vocab_size == len(vocabulary) == 129280
    assert all(tokenizer.id_of(token) == i for token, i in vocabulary.items())
    ids = range(len(vocabulary))
    official_texts = reads_added.decode_batch([[i] for i in ids], skip_special_tokens=False)
    assert [tokenizer.decode([i]) for i in ids] == official_texts


@pytest.mark.parametrize("seed", range(5))
def test_random_ids_decode_as_officially(tokenizer: Tokenizer, reads_added, seed: int):
    """Random ids make invalid UTF-8 of every kind; both sides must replace it alike."""
    rng = random.Random(seed)
    single_bytes = [tokenizer.id_of(char) for char in byte_tokens(reads_added)]
    for _ in range(400):
        pool = single_bytes if rng.random() < 0.5 else range(129280)
        ids = rng.choices(pool, k=rng.randint(1, 30))
        assert tokenizer.decode(ids) == reads_added.decode(ids, skip_special_tokens=False)


def byte_tokens(theirs: tokenizers.Tokenizer) -> list[str]:
    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet() & theirs.get_vocab().keys())


def test_ids_that_the_chat_encoding_relies_on(tokenizer: Tokenizer):
    assert (tokenizer.bos_id, tokenizer.eos_id) == (0, 1)
    assert tokenizer.stop_ids == {1, 128803, 128804}
    ids = {
        "<｜begin▁of▁sentence｜>": 0,
        "<｜end▁of▁sentence｜>": 1,
        "<｜▁pad▁｜>": 2,
        "<｜User｜>": 128803,
        "<｜Assistant｜>": 128804,
        "<think>": 128821,
        "</think>": 128822,
        "｜DSML｜": 128825,
        "<｜latest_reminder｜>": 128828,
    }
    assert {token: tokenizer.id_of(token) for token in ids} == ids


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("1234567", ["123", "456", "7"]),
        ("rfid501.go", ["rf", "id", "501", ".go"]),
        ("我25岁", ["我", "25", "岁"]),
        (" \n x", [" \n", " x"]),
        ("</｜DSML｜", ["</", "｜", "DS", "ML", "｜"]),
    ],
)
def test_pieces_worked_by_hand(tokenizer: Tokenizer, text: str, pieces: list[str]):
    assert [tokenizer.decode([i]) for i in tokenizer.encode(text)] == pieces


def test_padding_ids_of_a_converter_decode_and_are_never_encoded(tokenizer_json: dict[str, Any]):
    metadata = official.gguf_metadata(tokenizer_json, vocab_size=129288)
    padded = Tokenizer.from_metadata(metadata)
    assert padded.vocab_size == 129288
    assert padded.decode([129287]) == "[PAD129287]"
    assert 129287 not in padded.encode("[PAD129287]", special=True)
