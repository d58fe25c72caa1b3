"""Streaming gives the text of decoding, in whole characters and as early as it can."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from mlx_dsv4.text import Tokenizer

TEXTS = [
    "aé中😀\u200d👩🏽\u0301",
    "\x00\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff",
    "real \ufffd stays \ufffd",
    "\ufeffmark",
]
# Bytes that begin, continue and break characters, as a broken model would emit them.
BROKEN = [
    b"\xff\xfe",
    b"\x80\x80a",
    b"\xe4\xb8a",
    b"\xf0\x9f\x98\xf0\x9f\x98\x80",
    b"\xc0\xaf\xe0\x80\x80",
    b"\xed\xa0\x80\xed\xb0\x80",
    b"\xf4\x90\x80\x80",
    b"a\xf0\x9f",
    b"\xe4\xb8",
    b"\xc3",
]


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_metadata(small.metadata())


@pytest.fixture(scope="module")
def byte_ids(tiny: Tokenizer) -> list[int]:
    """The token of each single byte."""
    return [i for _, i in sorted((tiny.bytes_of(i), i) for i in range(256))]


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [stream.push(i) for i in ids] + [stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_appears_whole_with_its_last_byte(tiny, byte_ids, text: str):
    expected = []
    for char in text:
        expected += [""] * (len(char.encode()) - 1) + [char]
    assert pieces(tiny, [byte_ids[b] for b in text.encode()]) == [*expected, ""]


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_cut_anywhere_ends_as_decoding_does(tiny, byte_ids, text: str):
    data = text.encode()
    for cut in range(len(data) + 1):
        ids = [byte_ids[b] for b in data[:cut]]
        assert "".join(pieces(tiny, ids)) == tiny.decode(ids)
        assert tiny.decode(ids) == data[:cut].decode("utf-8", "replace")


@pytest.mark.parametrize("data", BROKEN, ids=repr)
def test_broken_bytes_are_replaced_as_officially(tiny, byte_ids, reads_added, tokenizer, data):
    ids = [byte_ids[b] for b in data]
    assert "".join(pieces(tiny, ids)) == tiny.decode(ids)
    strings = [small.metadata()["tokenizer.ggml.tokens"][i] for i in ids]
    official_ids = [tokenizer.id_of(string) for string in strings]
    expected = reads_added.decode(official_ids, skip_special_tokens=False)
    assert "".join(pieces(tokenizer, official_ids)) == expected


@given(ids=st.lists(st.integers(0, 265)))
@settings(max_examples=300, deadline=None)
def test_streaming_random_bytes_equals_decoding(tiny: Tokenizer, ids: list[int]):
    assert "".join(pieces(tiny, ids)) == tiny.decode(ids)


@given(ids=st.lists(st.integers(0, 129279)))
@settings(max_examples=300, deadline=None)
def test_streaming_random_tokens_equals_the_official_text(tokenizer, reads_added, ids: list[int]):
    expected = reads_added.decode(ids, skip_special_tokens=False)
    assert "".join(pieces(tokenizer, ids)) == expected


@given(text=st.text())
@settings(max_examples=200, deadline=None)
def test_valid_text_streams_without_a_replacement(tokenizer: Tokenizer, text: str):
    streamed = pieces(tokenizer, tokenizer.encode(text))
    assert "".join(streamed) == text
    assert streamed[-1] == ""


def test_a_flushed_stream_starts_afresh(tiny: Tokenizer, byte_ids: list[int]):
    stream = tiny.stream()
    euro = [byte_ids[b] for b in "€".encode()]
    assert [stream.push(euro[0]), stream.flush(), stream.flush()] == ["", "\ufffd", ""]
    assert "".join(stream.push(i) for i in euro) == "€"


def test_a_refused_id_leaves_held_bytes_held(tiny: Tokenizer, byte_ids: list[int]):
    stream = tiny.stream()
    euro = [byte_ids[b] for b in "€".encode()]
    held = [stream.push(i) for i in euro[:2]]
    with pytest.raises(ValueError, match="token id"):
        stream.push(266)
    assert held == ["", ""]
    assert stream.push(euro[2]) == "€"


def test_two_streams_of_one_tokenizer_do_not_meet(tiny: Tokenizer, byte_ids: list[int]):
    one, other = tiny.stream(), tiny.stream()
    euro = [byte_ids[b] for b in "€".encode()]
    assert [one.push(euro[0]), other.push(euro[1])] == ["", "\ufffd"]
    assert one.push(euro[1]) + one.push(euro[2]) == "€"
