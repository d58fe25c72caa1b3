"""A byte-level vocabulary small enough to read."""

from tokenizers import pre_tokenizers

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = ["he", "ll", "llo", "hello"]
ADDED = ["<bos>", "<eos>", "<｜User｜>", "<note>", "<note>!", "[PAD0]"]


def metadata() -> dict[str, object]:
    """256 bytes, four words, three control, two user-defined tokens and an unused one."""
    tokens = [*ALPHABET, *WORDS, *ADDED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "joyai-llm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 260 + [3, 3, 3, 4, 4, 5],
        "tokenizer.ggml.merges": ["h e", "l l", "ll o", "he llo"],
        "tokenizer.ggml.bos_token_id": 260,
        "tokenizer.ggml.eos_token_id": 261,
    }
