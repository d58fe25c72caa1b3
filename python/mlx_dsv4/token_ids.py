"""Token ids as callers give them."""

import operator
from collections.abc import Iterable, Mapping, Sequence, Set

from mlx_dsv4.errors import PromptError


def check_token_ids(tokens: Sequence[int], vocab: int) -> list[int]:
    """The ids as Python ints.

    Args:
        tokens: Of any integer type but bool; may be empty.
        vocab: Each id is below it.

    Raises:
        PromptError: text or something else than a sequence, one that is no integer, or an id
            outside the vocabulary; names the first one.
    """
    if isinstance(tokens, str | bytes | bytearray | memoryview):
        raise PromptError("token ids are needed, not text: encode it with the tokenizer")
    if not isinstance(tokens, Iterable) or isinstance(tokens, Mapping | Set):
        raise PromptError(f"a prompt must be a sequence of token ids; got {tokens!r}")
    ids = []
    for index, token in enumerate(tokens):
        try:
            if isinstance(token, bool):
                raise TypeError
            ids.append(operator.index(token))
        except TypeError:
            raise PromptError(
                f"token ids must be integers; got {token!r} at index {index}"
            ) from None
        if not 0 <= ids[-1] < vocab:
            raise PromptError(
                f"token ids must be in 0..{vocab - 1}; got {ids[-1]} at index {index}"
            )
    return ids
