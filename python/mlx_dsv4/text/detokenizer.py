"""Token ids to text as they arrive."""

import codecs
from collections.abc import Callable


class Detokenizer:
    """Turns one stream of token ids into text, piece by piece.

    The concatenation of every ``push`` and the final ``flush`` equals
    ``Tokenizer.decode`` of the same ids. A token may end inside a character: its bytes
    are held until the character is complete or can no longer become one.

    Args:
        bytes_of: The bytes of a token id; ``Tokenizer.stream`` passes its own.

    Source: Unicode Standard 3.9, U+FFFD substitution of maximal subparts.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take one token and return the characters it completes, often none.

        Args:
            token_id: An id of the vocabulary.

        Returns:
            Whole characters; U+FFFD for bytes that cannot become one.

        Raises:
            TokenizerError: the id is outside the vocabulary; held bytes stay held.
        """
        return self._decoder.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        """End the stream and return what is held, as ``decode`` would show it.

        The next ``push`` starts another stream.

        Returns:
            U+FFFD when a character was incomplete, otherwise the empty string.
        """
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
