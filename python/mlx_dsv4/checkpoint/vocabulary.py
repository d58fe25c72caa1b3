"""The arrays that GGUF keeps of a tokenizer, from the ``tokenizer.json`` of a checkpoint."""

import json
import re
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

from mlx_dsv4.checkpoint.shards import read_json
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import TokenizerError
from mlx_dsv4.gguf.vocabulary import (
    BOS,
    CONTROL,
    EOS,
    NORMAL,
    PAD,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
)
from mlx_dsv4.text import Tokenizer
from mlx_dsv4.text.tokenizer import pre_tokenizer

T = TypeVar("T")
_KINDS = {dict: "an object", list: "an array", str: "a string", int: "an integer"}

# Not all of these are marked as special, and all of them steer.
_CONTROL_SPELLING = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
# What else than the default would change how text is cut or merged.
_DEFAULTS = {
    "type": ("BPE",),
    "dropout": (None, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}


def read_vocabulary(path: Path, config: ModelConfig) -> Vocabulary:
    """Read a byte-level BPE whose arrays give its ids back.

    Added tokens are control tokens if they are marked as special or spelt ``<｜…｜>``, and
    user-defined ones otherwise. Ids without a token, up to the rows of the embedding, become unused
    tokens ``[PAD<id>]``.

    Args:
        path: Of ``tokenizer.json``.
        config: Its ``vocab`` is the number of ids.

    Raises:
        OSError: the file cannot be read.
        FileFormatError: it is no JSON object.
        TokenizerError: it is no tokenizer, another one than DeepSeek's, or larger than ``vocab``.
    """
    content = read_json(path)
    try:
        _check_types(content)
        _check_kind(content)
        vocabulary = _arrays(content, config.vocab)
        bos, eos, _ = (_control_id(vocabulary, token) for token in (BOS, EOS, PAD))
        Tokenizer(vocabulary.tokens, vocabulary.types, vocabulary.merges, bos, eos)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from None
    return vocabulary


def _control_id(vocabulary: Vocabulary, token: str) -> int:
    if token not in vocabulary.tokens or vocabulary.types[vocabulary.id_of(token)] != CONTROL:
        raise TokenizerError(f"added_tokens must have {token}")
    return vocabulary.id_of(token)


def _check_types(content: dict[str, Any]) -> None:
    """Refuse what is no tokenizer of any kind."""
    model = _expect(dict, content.get("model"), "model")
    for token, token_id in _expect(dict, model.get("vocab"), "model.vocab").items():
        _expect(int, token_id, f"model.vocab: the id of {token!r}")
    for rank, merge in enumerate(_expect(list, model.get("merges"), "model.merges")):
        pair = merge.split(" ", 1) if isinstance(merge, str) else merge
        if not isinstance(pair, list) or [type(part) for part in pair] != [str, str]:
            rule = "two strings, or one with a space between them"
            raise TokenizerError(f"model.merges[{rank}] must be {rule}; got {merge!r}")
    for index, entry in enumerate(_expect(list, content.get("added_tokens"), "added_tokens")):
        place = f"added_tokens[{index}]"
        _expect(dict, entry, place)
        _expect(int, entry.get("id"), f"{place}.id")
        _expect(str, entry.get("content"), f"{place}.content")


def _expect(kind: type[T], value: object, place: str) -> T:
    if type(value) is not kind:
        got = "nothing" if value is None else type(value).__name__
        raise TokenizerError(f"{place} must be {_KINDS[kind]}; got {got}")
    return value


def _check_kind(content: dict[str, Any]) -> None:
    model = content["model"]
    for key, accepted in _DEFAULTS.items():
        if model.get(key) not in accepted:
            raise TokenizerError(f"model.{key} must be {accepted[0]!r}; got {model.get(key)!r}")
    normalizer = content.get("normalizer")
    empty = isinstance(normalizer, dict) and normalizer.get("normalizers") == []
    if normalizer is not None and not empty:
        raise TokenizerError(f"normalizer must be absent or empty; got {normalizer!r}")
    bare = tokenizers.Tokenizer(tokenizers.models.BPE())
    bare.pre_tokenizer = pre_tokenizer()
    found = content.get("pre_tokenizer")
    if _spelling(found) != _spelling(json.loads(bare.to_str())["pre_tokenizer"]):
        raise TokenizerError(f"pre_tokenizer must be that of DeepSeek-V4; got {found!r}")


def _spelling(pre_tokenizer: object) -> str:
    """One form of patterns that spell a line break as the character or as its escape."""
    return re.sub(r"\\\\([rn])", r"\\\1", json.dumps(pre_tokenizer, sort_keys=True))


def _arrays(content: dict[str, Any], size: int) -> Vocabulary:
    strings: dict[int, str] = {}
    types: dict[int, int] = {}
    added = {entry["content"]: entry for entry in content["added_tokens"]}
    for entry in added.values():
        if entry.get("lstrip") or entry.get("rstrip") or entry.get("single_word"):
            raise TokenizerError(f"an added token must match as it stands; got {entry!r}")
        steers = entry.get("special") or _CONTROL_SPELLING.fullmatch(entry["content"])
        strings[entry["id"]] = entry["content"]
        types[entry["id"]] = CONTROL if steers else USER_DEFINED
    for token, token_id in content["model"]["vocab"].items():
        if strings.setdefault(token_id, token) != token:
            other = strings[token_id]
            raise TokenizerError(f"id {token_id} must be one token; got {token!r} and {other!r}")
    outside = [token_id for token_id in strings if not 0 <= token_id < size]
    if outside:
        raise TokenizerError(f"ids must be 0 to {size - 1}, the embedding's rows; got {outside[0]}")
    merges = content["model"]["merges"]
    return Vocabulary(
        tokens=tuple(strings.get(i, f"[PAD{i}]") for i in range(size)),
        types=tuple(types.get(i, NORMAL if i in strings else UNUSED) for i in range(size)),
        merges=tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in merges),
    )
