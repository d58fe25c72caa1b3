"""The full vocabulary, built once."""

from typing import Any

import pytest
import tokenizers

import official
from mlx_dsv4.text import Tokenizer


@pytest.fixture(scope="session")
def tokenizer_json() -> dict[str, Any]:
    return official.tokenizer_json()


@pytest.fixture(scope="session")
def tokenizer(tokenizer_json: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(official.gguf_metadata(tokenizer_json))


@pytest.fixture(scope="session")
def reads_added(tokenizer_json: dict[str, Any]) -> tokenizers.Tokenizer:
    """The official tokenizer as published."""
    return official.with_added_tokens(tokenizer_json)


@pytest.fixture(scope="session")
def reads_plain(tokenizer_json: dict[str, Any]) -> tokenizers.Tokenizer:
    """The official tokenizer with its added tokens taken away."""
    return official.without_added_tokens(tokenizer_json)
