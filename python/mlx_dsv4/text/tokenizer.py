"""Byte-level BPE rebuilt from the arrays of a GGUF file."""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from mlx_dsv4.errors import PromptError, TokenizerError
from mlx_dsv4.text.detokenizer import Detokenizer

MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"
TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPE = "tokenizer.ggml.token_type"
MERGES = "tokenizer.ggml.merges"
BOS = "tokenizer.ggml.bos_token_id"
EOS = "tokenizer.ggml.eos_token_id"

# Names under which converters store one and the same pre-tokeniser.
PRE_TOKENIZERS = ("joyai-llm", "deepseek-v3", "deepseek-v4")

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# Turn openers: a model that makes one has ended its own turn.
TURN_TOKENS = ("<｜User｜>", "<｜Assistant｜>")

# What separates the parts of a turn.
PART_TOKENS = ("<think>", "</think>", "｜DSML｜")

SPLITS = (
    r"\p{N}{1,3}",
    # CJK ideographs, hiragana, katakana
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+",
)


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """The pieces that merges stay within: each of ``SPLITS`` in turn, then bytes.

    Source: ``pre_tokenizer`` in tokenizer.json of deepseek-ai/DeepSeek-V4-Flash.
    """
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in SPLITS]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, to_bytes])


class Tokenizer:
    """Text to token ids and back.

    Ordinary tokens are made by merges from the bytes of the text. Every other token
    (control, user-defined, unused) has no merge and cannot be made by them, so text is
    data unless the caller asks for its control strings to be read.

    Args:
        tokens: Token strings by id. Ordinary ones in the byte-level alphabet, others literal.
            An empty string decodes to nothing; of equal strings the lowest id is encoded to.
        types: Token types by id: 1 normal, 3 control, 4 user-defined, 5 unused.
        merges: Pairs of ordinary token strings, strongest first.
        bos_id: Id that begins a prompt. ``encode`` never adds it.
        eos_id: Id that ends a turn.

    Raises:
        TokenizerError: an array is not one of those above; the message names its GGUF key.

    Source: tokenizer.json of deepseek-ai/DeepSeek-V4-Flash.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        types: Sequence[int],
        merges: Sequence[str],
        bos_id: int,
        eos_id: int,
    ) -> None:
        ordinary, added = _ids_by_string(tokens, types)
        self._bytes = _token_bytes(tokens, types)
        self._special = frozenset(i for i, kind in enumerate(types) if kind != NORMAL)
        self._ordinary = ordinary
        self._added = added
        self._bpe = _build_bpe(ordinary, _merge_pairs(merges, ordinary))
        # Parts of a turn are for whoever parses it, even where a file calls them control tokens.
        self._hidden = frozenset(
            i for i, kind in enumerate(types) if kind == CONTROL and tokens[i] not in PART_TOKENS
        )
        self._control = _any_of([s for s, i in added.items() if types[i] != UNUSED])
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.stop_ids = frozenset({eos_id, *(added[s] for s in TURN_TOKENS if s in added)})

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        """Build the tokenizer a GGUF file describes.

        Args:
            metadata: Key to value, as ``GGUFFile.metadata`` holds them. Arrays are lists or
                NumPy arrays.

        Raises:
            TokenizerError: a key is missing or holds something else than a byte-level BPE of
                DeepSeek; the message names the key, what was expected and what came.
        """
        _one_of(metadata, MODEL, ("gpt2",))
        _one_of(metadata, PRE, PRE_TOKENIZERS)
        tokens = _strings(metadata, TOKENS)
        types = _token_types(metadata, len(tokens))
        merges = _strings(metadata, MERGES)
        bos_id = _token_id(metadata, BOS, len(tokens))
        eos_id = _token_id(metadata, EOS, len(tokens))
        return cls(tokens, types, merges, bos_id, eos_id)

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that text alone never becomes: of control, user-defined and unused tokens."""
        return self._special

    @property
    def vocab_size(self) -> int:
        """Number of ids; each decodes, whatever its type."""
        return len(self._bytes)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Encode text; adds neither BOS nor EOS.

        By default no control or user-defined token can come out, whatever the text spells.
        This covers ``<think>``, ``</think>`` and ``｜DSML｜`` too, which files store as
        user-defined: they open and close the parts of a turn as control tokens do. (llama.cpp
        reads user-defined tokens in any text; DeepSeek's own prompt encoder does not.)

        Args:
            text: Any valid Unicode.
            special: Read control and user-defined strings as their tokens, the longest first.
                For text the caller wrote, never for what a user typed.

        Returns:
            Token ids; ``decode`` of them is ``text``.

        Raises:
            PromptError: the text holds a lone surrogate, which has no UTF-8 form.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"text must be valid Unicode; got the lone surrogate "
                f"U+{ord(text[error.start]):04X} at character {error.start}"
            ) from None
        if not special or self._control is None:
            return self._encode_ordinary(text)
        ids: list[int] = []
        start = 0
        for found in self._control.finditer(text):
            ids += self._encode_ordinary(text[start : found.start()])
            ids.append(self._added[found.group()])
            start = found.end()
        return ids + self._encode_ordinary(text[start:])

    def _encode_ordinary(self, text: str) -> list[int]:
        return self._bpe.encode(text, add_special_tokens=False).ids if text else []

    def decode(self, ids: Iterable[int], *, control: bool = True) -> str:
        """Text of ids.

        Args:
            ids: Ids of the vocabulary.
            control: Whether control tokens are part of it. What separates the parts of a turn
                (``<think>``, ``</think>``, ``｜DSML｜``) always is.

        Returns:
            Their text; U+FFFD where bytes are not UTF-8.

        Raises:
            TokenizerError: an id is outside the vocabulary.
        """
        bytes_of = self.bytes_of if control else self._visible_bytes_of
        return b"".join(map(bytes_of, ids)).decode("utf-8", "replace")

    def stream(self, *, control: bool = True) -> Detokenizer:
        """A detokenizer for one stream of ids of this vocabulary.

        Args:
            control: As in :meth:`decode`.
        """
        return Detokenizer(self.bytes_of if control else self._visible_bytes_of)

    def _visible_bytes_of(self, token_id: int) -> bytes:
        return b"" if token_id in self._hidden else self.bytes_of(token_id)

    def bytes_of(self, token_id: int) -> bytes:
        """UTF-8 bytes of one token; they may begin or end inside a character.

        Raises:
            TokenizerError: the id is outside the vocabulary.
        """
        if not 0 <= token_id < len(self._bytes):
            raise TokenizerError(f"token id must be in 0..{len(self._bytes) - 1}; got {token_id}")
        return self._bytes[token_id]

    def find(self, token: str) -> int | None:
        """As :meth:`id_of`; None if the vocabulary has no such token."""
        return self._added.get(token, self._ordinary.get(token))

    def id_of(self, token: str) -> int:
        """Id of a token string as the vocabulary spells it (ordinary: byte-level alphabet).

        Where an ordinary and another token share the string, the other one is meant.

        Raises:
            TokenizerError: the vocabulary has no such token.
        """
        token_id = self.find(token)
        if token_id is None:
            raise TokenizerError(f"token must be in the vocabulary; got {token!r}")
        return token_id


def _ids_by_string(
    tokens: Sequence[str], types: Sequence[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Lowest id of each non-empty string: ordinary tokens, all others."""
    ordinary: dict[str, int] = {}
    added: dict[str, int] = {}
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if token:
            (ordinary if kind == NORMAL else added).setdefault(token, token_id)
    return ordinary, added


def _byte_alphabet() -> str:
    """The character that stands for each byte: printable ones for themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(spare)) for byte in range(256))


BYTE_ALPHABET = _byte_alphabet()


def _token_bytes(tokens: Sequence[str], types: Sequence[int]) -> list[bytes]:
    to_byte = {ord(char): byte for byte, char in enumerate(BYTE_ALPHABET)}
    outside = re.compile(f"[^{re.escape(BYTE_ALPHABET)}]")
    table: list[bytes] = []
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        try:
            literal = kind != NORMAL or outside.search(token) is not None
            table.append(token.encode() if literal else token.translate(to_byte).encode("latin-1"))
        except UnicodeEncodeError:
            raise _wrong(f"{TOKENS}[{token_id}]", "valid Unicode", repr(token)) from None
    return table


def _merge_pairs(merges: Sequence[str], ordinary: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for rank, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        for part in (left, right, left + right):
            if part not in ordinary:
                expected = "two ordinary tokens that make a third, separated by a space"
                raise _wrong(f"{MERGES}[{rank}]", expected, f"{merge!r} ({part!r} is none)")
        pairs.append((left, right))
    return pairs


def _build_bpe(
    ordinary: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> tokenizers.Tokenizer:
    """The library's tokenizer over ordinary tokens alone, each under its own id."""
    absent = [char for char in BYTE_ALPHABET if char not in ordinary]
    if absent:
        expected = "a vocabulary with an ordinary token for each of the 256 bytes"
        raise _wrong(TOKENS, expected, f"none for {len(absent)} of them, first {absent[0]!r}")
    bpe = tokenizers.Tokenizer(models.BPE(vocab=dict(ordinary), merges=list(merges)))
    bpe.pre_tokenizer = pre_tokenizer()
    for token, token_id in ordinary.items():
        built = bpe.token_to_id(token)
        if built != token_id:
            raise _wrong(f"{TOKENS}[{token_id}]", f"{token!r} under this id", f"id {built}")
    return bpe


def _any_of(strings: Sequence[str]) -> re.Pattern[str] | None:
    """A pattern for the leftmost, then longest of some strings; none for no strings.

    Strings share a branch by their first characters: a thousand branches at each ``<``
    would take longer than the encoding itself.
    """
    tails: dict[str, list[str]] = {}
    for string in sorted(strings, key=len, reverse=True):
        tails.setdefault(string[:3], []).append(re.escape(string[3:]))
    heads = sorted(tails, key=len, reverse=True)
    branches = [f"{re.escape(head)}(?:{'|'.join(tails[head])})" for head in heads]
    return re.compile("|".join(branches)) if branches else None


def _wrong(key: str, expected: str, received: str) -> TokenizerError:
    return TokenizerError(f"{key} must be {expected}; got {received}")


def _one_of(metadata: Mapping[str, object], key: str, accepted: Sequence[str]) -> None:
    value = metadata.get(key)
    if not isinstance(value, str) or value not in accepted:
        expected = " or ".join(repr(name) for name in accepted)
        raise _wrong(key, expected, "nothing" if value is None else repr(value))


def _array(metadata: Mapping[str, object], key: str, expected: str) -> list[object]:
    value = metadata.get(key)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)) and value:
        return list(value)
    if isinstance(value, (list, tuple)):
        raise _wrong(key, expected, "an empty array")
    raise _wrong(key, expected, "nothing" if value is None else type(value).__name__)


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    expected = "an array of strings"
    strings: list[str] = []
    for index, value in enumerate(_array(metadata, key, expected)):
        if not isinstance(value, str):
            raise _wrong(key, expected, f"{type(value).__name__} at index {index}")
        strings.append(value)
    return strings


def _token_types(metadata: Mapping[str, object], n_tokens: int) -> list[int]:
    expected = f"an array of {n_tokens} types, one per token"
    types: list[int] = []
    values = _array(metadata, TOKEN_TYPE, expected)
    if len(values) != n_tokens:
        raise _wrong(TOKEN_TYPE, expected, str(len(values)))
    for index, value in enumerate(values):
        if not isinstance(value, int) or value not in (NORMAL, CONTROL, USER_DEFINED, UNUSED):
            kinds = "1 (normal), 3 (control), 4 (user-defined) or 5 (unused)"
            raise _wrong(f"{TOKEN_TYPE}[{index}]", kinds, repr(value))
        types.append(value)
    return types


def _token_id(metadata: Mapping[str, object], key: str, n_tokens: int) -> int:
    value = metadata.get(key)
    if isinstance(value, (int, np.integer)) and 0 <= value < n_tokens:
        return int(value)
    expected = f"a token id in 0..{n_tokens - 1}"
    raise _wrong(key, expected, "nothing" if value is None else repr(value))
