"""Text to token ids and back, from the vocabulary a GGUF file carries."""

from mlx_dsv4.text.detokenizer import Detokenizer
from mlx_dsv4.text.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Tokenizer"]
