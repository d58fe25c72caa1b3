"""Text to token ids and back, from the vocabulary a GGUF file carries; chats to prompts."""

from mlx_dsv4.text.chat import ChatEncoding, ChatPrompt, OutputParser
from mlx_dsv4.text.detokenizer import Detokenizer
from mlx_dsv4.text.stop_strings import StopStrings
from mlx_dsv4.text.tokenizer import Tokenizer

__all__ = [
    "ChatEncoding",
    "ChatPrompt",
    "Detokenizer",
    "OutputParser",
    "StopStrings",
    "Tokenizer",
]
