"""How a prompt is cut into calls. What is computed does not depend on it; time and memory do."""

LARGE_WEIGHTS_BYTES = 100 * 10**9
LONG_CAPACITY_TOKENS = 131_072
CHUNK_UNIT_TOKENS = 128
LEAST_CHUNK_TOKENS = 33  # of a chunk that is not at the start


def chunk_multiplier(weight_bytes: int, capacity_tokens: int, *, setting: int | None = None) -> int:
    """Chunks are this many times 128 tokens.

    Args:
        weight_bytes: Of the model.
        capacity_tokens: Of the cache.
        setting: What was asked for explicitly; it wins.
    """
    if setting is not None:
        return setting
    if capacity_tokens > LONG_CAPACITY_TOKENS:
        return 8
    return 16 if weight_bytes >= LARGE_WEIGHTS_BYTES else 32


def balanced_multiplier(n_tokens: int, multiplier: int) -> int:
    """The multiplier for a prompt read from position 0: two chunks and a bit become three alike."""
    default = CHUNK_UNIT_TOKENS * multiplier
    if not 2 * default < n_tokens < 3 * default:
        return multiplier
    third = -(-n_tokens // 3)
    return min(max(-(-third // CHUNK_UNIT_TOKENS), 1), multiplier)


def chunk_tokens(position: int, remaining: int, multiplier: int) -> int:
    """Tokens of the next chunk; 0: too few remain for one, they go token by token."""
    if position > 0 and remaining < LEAST_CHUNK_TOKENS:
        return 0
    return min(remaining, CHUNK_UNIT_TOKENS * multiplier)


def slice_tokens(position: int, remaining: int, multiplier: int) -> int:
    """Tokens of the next call of a prefill that may be paused after it.

    A chunk that would leave too few for another is shrunk to leave just enough. What is too
    short for a chunk goes in one call: a call gives the bits that token by token would.
    """
    size = chunk_tokens(position, remaining, multiplier) or remaining
    left = remaining - size
    if 0 < left < LEAST_CHUNK_TOKENS and size > LEAST_CHUNK_TOKENS:
        size -= LEAST_CHUNK_TOKENS - left
    return size
