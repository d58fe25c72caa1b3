"""JSON of a schema, whatever the model would rather say: tokens are allowed by a grammar.

pip install llguidance
python examples/grammar.py model.gguf "Describe a book as JSON: "
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from mlx_dsv4 import Engine, Params
from mlx_dsv4.text import Tokenizer

BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "pages": {"type": "integer", "minimum": 1, "maximum": 5000},
        "kind": {"enum": ["novel", "poems", "manual"]},
        "lent": {"type": "boolean"},
    },
    "required": ["title", "pages", "kind", "lent"],
    "additionalProperties": False,
}


class Vocabulary:
    """What llguidance needs to know of a tokenizer: the bytes of each token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.bos_token_id, self.eos_token_id = tokenizer.bos_id, tokenizer.eos_id
        self.tokens = [tokenizer.bytes_of(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)


class JsonOf:
    """A hook for ``Params.allowed_tokens``: the tokens with which JSON of a schema can go on.

    Args:
        tokenizer: Of the model.
        vocab: Logits of the model, which may be more than the tokenizer has tokens.
        schema: JSON schema.

    Raises:
        ValueError: llguidance cannot make a grammar of the schema; says why.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int, schema: dict[str, Any]) -> None:
        self._vocab = vocab
        known = LLTokenizer(TokenizerWrapper(Vocabulary(tokenizer)), n_vocab=vocab)
        grammar = LLMatcher.grammar_from_json_schema(schema, {"whitespace_flexible": False})
        self._matcher = LLMatcher(known, grammar)
        self._seen: list[int] = []
        self._check()

    def __call__(self, generated: Sequence[int]) -> np.ndarray:
        """Which tokens may follow those generated so far; another generation begins again."""
        if list(generated[: len(self._seen)]) != self._seen:
            self._matcher.reset()
            self._seen = []
        self._matcher.consume_tokens(list(generated[len(self._seen) :]))
        self._seen = list(generated)
        bits = allocate_token_bitmask(1, self._vocab)
        fill_next_token_bitmask(self._matcher, bits)
        self._check()
        return np.unpackbits(bits.view(np.uint8)[0], bitorder="little")[: self._vocab].astype(bool)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/grammar.py MODEL.gguf PROMPT")
    path, prompt = sys.argv[1:]
    with Engine.load(path, context=4096) as engine:
        book = JsonOf(engine.tokenizer, engine.config.vocab, BOOK)
        result = engine.generate(prompt, Params(max_tokens=400, allowed_tokens=book))
        print(json.dumps(json.loads(result.text), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
