"""When two implementations of the model agree."""

import numpy as np

# Logits of the tiny models have a standard deviation of 3; float32 implementations that sum in
# different orders differ by 1e-5 to 1e-4 of that.
LOGIT_BOUND = 5e-4
# Rounding moves an indexer's or router's keys by some 1e-6 of the largest one: choices that are
# nearer than this may fall either way.
NEAR_TIE = 5e-6


def comparable_tokens(margin: np.ndarray) -> int:
    """Tokens before the first near tie; those after it read what it chose."""
    near = np.flatnonzero(margin < NEAR_TIE)
    return int(near[0]) if near.size else margin.size


def largest_difference(ours: np.ndarray, theirs: np.ndarray, margin: np.ndarray) -> float:
    """Largest difference of logits ``[T, V]`` over the comparable tokens; NaN stays NaN.

    Args:
        ours: Logits of one implementation.
        theirs: Logits of the other.
        margin: ``[T]``, from :meth:`mlx_dsv4.reference.model.Trace.margin`.

    Raises:
        AssertionError: a near tie leaves less than nine tenths of the tokens to compare.
    """
    assert ours.shape == theirs.shape
    n = comparable_tokens(margin)
    assert n >= 0.9 * margin.size, f"token {n} of {margin.size} is a near tie: take another seed"
    return float(np.abs(ours[:n] - theirs[:n]).max())
