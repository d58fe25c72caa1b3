"""The tokenizer of a converted file encodes and decodes as the checkpoint's own file does."""

import json
from pathlib import Path

import pytest
import tokenizers

import official
import text_corpus
from mlx_dsv4.checkpoint.vocabulary import read_vocabulary
from mlx_dsv4.errors import TokenizerError
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.gguf.tiny import tiny_config
from mlx_dsv4.gguf.vocabulary import CONTROL, NORMAL, UNUSED, USER_DEFINED, Vocabulary
from mlx_dsv4.text import Tokenizer

TEXTS = [*text_corpus.user_texts()[::3], *text_corpus.control_texts()[::3]]


def published(folder: Path, vocab: int = 129_280) -> Vocabulary:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(official.tokenizer_json()))
    return read_vocabulary(path, tiny_config(vocab=vocab))


def test_a_converted_file_encodes_as_the_checkpoint(checkpoint: Path, usual: Path):
    theirs = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    with GGUFFile(usual) as file:
        ours = Tokenizer.from_metadata(file.metadata)
    assert len(TEXTS) > 1500
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special=True) == expected
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=False)
    assert ours.vocab_size == theirs.get_vocab_size(with_added_tokens=True)


def test_the_published_tokenizer_converts_exactly(tmp_path: Path):
    content = official.tokenizer_json()
    found = published(tmp_path)
    vocabulary = official.with_added_tokens(content).get_vocab(with_added_tokens=True)
    assert {token: i for i, token in enumerate(found.tokens)} == vocabulary
    assert list(found.merges) == content["model"]["merges"]
    # Types as llama.cpp's converter gives them, by the spelling of a token where it is not marked.
    expected = official.gguf_metadata(content)["tokenizer.ggml.token_type"]
    assert list(found.types) == expected
    kinds = {token: found.types[vocabulary[token]] for token in ("Ġthe", "<｜User｜>", "<think>")}
    assert list(kinds.values()) == [NORMAL, CONTROL, USER_DEFINED]
    theirs = official.with_added_tokens(content)
    ours = Tokenizer(found.tokens, found.types, found.merges, 0, 1)
    for text in TEXTS:
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False).ids


def test_rows_without_a_token_are_unused(tmp_path: Path):
    found = published(tmp_path, 129_290)
    assert found.tokens[129_280:] == tuple(f"[PAD{i}]" for i in range(129_280, 129_290))
    assert found.types[129_280:] == (UNUSED,) * 10
    with pytest.raises(TokenizerError, match=r"ids must be 0 to 128999, the embedding's rows"):
        published(tmp_path, 129_000)


def test_merges_may_be_pairs(checkpoint: Path, tmp_path: Path):
    content = json.loads((checkpoint / "tokenizer.json").read_text())
    pairs = [merge.split(" ") for merge in content["model"]["merges"]]
    content["model"]["merges"] = pairs
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    again = read_vocabulary(path, tiny_config(vocab=512))
    assert again == read_vocabulary(checkpoint / "tokenizer.json", tiny_config(vocab=512))
