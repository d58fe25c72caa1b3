"""What cannot be a prompt, a tool or an effort is refused with a typed error that names it."""

from typing import Any

import pytest

from mlx_dsv4.errors import ChatError, PromptError
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.text import ChatEncoding, Tokenizer
from mlx_dsv4.token_ids import check_token_ids
from tiny_models import tiny_model

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("prompt", [None, 5, 2.5])
def test_a_prompt_is_a_sequence(prompt: Any) -> None:
    with pytest.raises(PromptError, match=f"must be a sequence of token ids; got {prompt}"):
        check_token_ids(prompt, 10)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tools": [5]}, "a tool must be a mapping with type and function; got 5"),
        ({"effort": []}, r"effort must be low, high, max or None; got \[\]"),
    ],
)
def test_tools_are_mappings_and_efforts_words(given: dict[str, Any], message: str) -> None:
    with GGUFFile(tiny_model().path) as file:
        encoding = ChatEncoding(Tokenizer.from_metadata(file.metadata))
    with pytest.raises(ChatError, match=message):
        encoding.render(MESSAGES, **given)
