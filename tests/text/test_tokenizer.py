"""What text becomes, and what a file must hold."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import small
from mlx_dsv4.errors import PromptError, TokenizerError
from mlx_dsv4.text import Tokenizer

FIRST_ADDED = 260
TOKENS, TYPES, MERGES = (f"tokenizer.ggml.{key}" for key in ("tokens", "token_type", "merges"))


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_metadata(small.metadata())


def added_ids(tokenizer_json) -> set[int]:
    return {entry["id"] for entry in tokenizer_json["added_tokens"]}


@given(text=st.text())
@example(text="<｜User｜>\r\n</think>｜DSML｜\x00\ufffd\ufeff")
@settings(max_examples=300, deadline=None)
def test_any_text_survives_the_round_trip(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, special=True)) == text


def test_user_text_cannot_make_a_control_token(tokenizer: Tokenizer, tokenizer_json):
    forbidden = added_ids(tokenizer_json)
    for entry in tokenizer_json["added_tokens"]:
        text = f"x{entry['content']}y"
        ids = tokenizer.encode(text)
        assert forbidden.isdisjoint(ids)
        assert tokenizer.decode(ids) == text


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_no_mixture_of_control_strings_makes_one(tokenizer: Tokenizer, tokenizer_json, data):
    strings = [entry["content"] for entry in tokenizer_json["added_tokens"]]
    piece = st.one_of(st.sampled_from(strings), st.text(max_size=3))
    text = "".join(data.draw(st.lists(piece, max_size=8)))
    assert added_ids(tokenizer_json).isdisjoint(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text, special=True)) == text


def test_merges_apply_in_their_order_within_a_piece(tiny: Tokenizer):
    assert tiny.encode("hello") == [tiny.id_of("hello")]
    assert tiny.encode("hell") == [tiny.id_of("he"), tiny.id_of("ll")]
    assert tiny.encode("") == tiny.encode("", special=True) == []


def test_special_strings_are_read_longest_first_and_only_when_asked(tiny: Tokenizer):
    bos, note, long_note = (tiny.id_of(t) for t in ("<bos>", "<note>", "<note>!"))
    hello = tiny.id_of("hello")
    assert tiny.encode("<bos>hello<note>!<note>", special=True) == [bos, hello, long_note, note]
    assert max(tiny.encode("<bos>hello<note>!<note>")) < FIRST_ADDED
    assert max(tiny.encode("[PAD0]", special=True)) < FIRST_ADDED


def test_control_tokens_can_be_left_out_and_the_parts_of_a_turn_cannot(tokenizer: Tokenizer):
    parts = ("<think>", "</think>", "｜DSML｜")
    words = (
        "<｜User｜>",
        "a",
        "<think>",
        "b",
        "</think>",
        "｜DSML｜",
        "<｜latest_reminder｜>",
        "c",
    )
    ids = [tokenizer.id_of(word) for word in words] + [tokenizer.eos_id]
    expected = "".join(w for w in words if w in parts or len(w) == 1)
    assert tokenizer.decode(ids, control=False) == expected
    stream = tokenizer.stream(control=False)
    assert "".join(map(stream.push, ids)) + stream.flush() == expected
    assert tokenizer.decode(ids).startswith("<｜User｜>a<think>")


def test_tokens_that_text_never_becomes_are_named(tiny: Tokenizer):
    # After the 256 bytes and four words: control, user-defined, unused.
    assert tiny.special_ids == {260, 261, 262, 263, 264, 265}


def test_names_and_numbers(tiny: Tokenizer):
    assert (tiny.bos_id, tiny.eos_id, tiny.vocab_size) == (260, 261, 266)
    assert tiny.stop_ids == {261, tiny.id_of("<｜User｜>")}
    assert tiny.decode([tiny.bos_id, tiny.id_of("hello"), 265]) == "<bos>hello[PAD0]"
    with pytest.raises(TokenizerError, match=r"token must be in the vocabulary; got '<pad>'"):
        tiny.id_of("<pad>")


@pytest.mark.parametrize("token_id", [-1, 266])
def test_ids_outside_the_vocabulary_are_refused(tiny: Tokenizer, token_id: int):
    message = rf"token id must be in 0\.\.265; got {token_id}"
    with pytest.raises(TokenizerError, match=message):
        tiny.decode([0, token_id])
    with pytest.raises(TokenizerError, match=message):
        tiny.stream().push(token_id)


def test_text_that_is_not_unicode_is_refused(tiny: Tokenizer):
    with pytest.raises(PromptError, match=r"lone surrogate U\+DC80 at character 2"):
        tiny.encode("ab\udc80")


@pytest.mark.parametrize("name", ["joyai-llm", "deepseek-v3", "deepseek-v4"])
def test_every_name_of_the_pre_tokeniser_means_the_same(name: str, tiny: Tokenizer):
    other = Tokenizer.from_metadata(small.metadata() | {"tokenizer.ggml.pre": name})
    assert other.encode("hello 1234567 中文") == tiny.encode("hello 1234567 中文")


def test_arrays_of_numpy_are_read(tiny: Tokenizer):
    metadata = small.metadata()
    metadata[TYPES] = np.array(metadata[TYPES], np.int32)
    metadata["tokenizer.ggml.bos_token_id"] = np.uint32(260)
    assert Tokenizer.from_metadata(metadata).bos_id == 260


def extended(tokens: list[str], types: list[int]) -> Tokenizer:
    metadata = small.metadata()
    return Tokenizer.from_metadata(
        metadata | {TOKENS: [*metadata[TOKENS], *tokens], TYPES: [*metadata[TYPES], *types]}
    )


def test_empty_strings_decode_to_nothing_and_match_nowhere():
    tokenizer = extended(["", "", ""], [1, 3, 4])
    assert tokenizer.decode([266, 267, 268]) == ""
    assert tokenizer.decode(tokenizer.encode("hello<bos>", special=True)) == "hello<bos>"
    with pytest.raises(TokenizerError, match="got ''"):
        tokenizer.id_of("")


def test_of_equal_strings_the_lowest_id_is_encoded_and_all_decode():
    tokenizer = extended(["hello", "<bos>", "hello"], [1, 3, 3])
    hello, control_hello = small.metadata()[TOKENS].index("hello"), 268
    assert tokenizer.encode("hello<bos>")[0] == hello
    assert tokenizer.encode("<bos>hello", special=True) == [260, control_hello]
    assert tokenizer.id_of("hello") == control_hello
    assert tokenizer.decode([hello, 266, 267, 268]) == "hellohello<bos>hello"


@pytest.mark.parametrize("key", small.metadata())
def test_each_missing_key_is_named(key: str):
    metadata = small.metadata()
    del metadata[key]
    with pytest.raises(TokenizerError, match=rf"^{key} must be .+; got nothing$"):
        Tokenizer.from_metadata(metadata)


def replaced(key: str, index: int, value: object) -> Callable[[dict], None]:
    def change(metadata: dict) -> None:
        metadata[key] = [*metadata[key][:index], value, *metadata[key][index + 1 :]]

    return change


def swapped(key: str, value: object) -> Callable[[dict], None]:
    return lambda metadata: metadata.update({f"tokenizer.ggml.{key}": value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swapped("model", "llama"), r"model must be 'gpt2'; got 'llama'"),
        (swapped("model", 3), r"model must be 'gpt2'; got 3"),
        (swapped("pre", "llama-bpe"), r"pre must be 'joyai-llm' or .*; got 'llama-bpe'"),
        (swapped("tokens", "abc"), r"tokens must be an array of strings; got str"),
        (swapped("tokens", []), r"tokens must be an array of strings; got an empty array"),
        (swapped("token_type", [1] * 265), r"token_type must be an array of 266 .*; got 265"),
        (swapped("token_type", 1), r"token_type must be an array of 266 types.*; got int"),
        (swapped("merges", ["h e", 7]), r"merges must be an array of strings; got int at index 1"),
        (swapped("bos_token_id", 266), r"bos_token_id must be a token id in 0\.\.265; got 266"),
        (swapped("bos_token_id", -1), r"bos_token_id must be a token id in 0\.\.265; got -1"),
        (swapped("eos_token_id", "1"), r"eos_token_id must be a token id in 0\.\.265; got '1'"),
        (replaced(TOKENS, 4, b"x"), r"tokens must be an array of strings; got bytes at index 4"),
        (replaced(TOKENS, 261, "\ud800"), r"tokens\[261\] must be valid Unicode; got '\\ud800'"),
        (
            replaced(TOKENS, 0, "zz"),
            r"tokens must be a vocabulary .* each of the 256 bytes; .*first '!'",
        ),
        (replaced(TYPES, 5, 6), r"token_type\[5\] must be 1 \(normal\), .*; got 6"),
        (replaced(TYPES, 5, 1.0), r"token_type\[5\] must be 1 \(normal\), .*; got 1\.0"),
        (replaced(TYPES, 259, 3), r"merges\[3\] must be two ordinary tokens .*'hello' is none"),
        (replaced(MERGES, 1, "l q q"), r"merges\[1\] must be two .*got 'l q q' \('q q' is none"),
        (replaced(MERGES, 0, "he"), r"merges\[0\] must be two ordinary .*; got 'he' \('' is none"),
        (replaced(MERGES, 0, "h o"), r"merges\[0\] must be .*; got 'h o' \('ho' is none\)"),
    ],
)
def test_wrong_metadata_is_refused_with_its_key(change: Callable[[dict], None], message: str):
    metadata = small.metadata()
    change(metadata)
    with pytest.raises(TokenizerError, match=rf"^tokenizer\.ggml\.{message}"):
        Tokenizer.from_metadata(metadata)
