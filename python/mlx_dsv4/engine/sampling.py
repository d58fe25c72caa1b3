"""Choosing the next token from logits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.errors import LogitsError

GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn; the steps apply in the order of the fields' numbers.

    Args:
        temperature: (4) Divides the logits before the draw; below 1e-5 the largest logit wins,
            the lowest id on ties.
        top_k: (1) Keep the k most likely tokens; 0 keeps all.
        top_p: (2) Keep the most likely tokens up to and including the one at which their
            probabilities reach ``top_p``.
        min_p: (3) Keep tokens at least ``min_p`` times as likely as the most likely one.
        seed: Of the draws; None takes fresh entropy.

    Raises:
        ValueError: a number is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        rules = (
            ("temperature", self.temperature, self.temperature >= 0, ">= 0"),
            ("top_k", self.top_k, self.top_k >= 0, ">= 0"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "in 0..1"),
            ("seed", self.seed, self.seed is None or self.seed >= 0, ">= 0"),
        )
        for name, value, holds, rule in rules:
            if not holds:
                raise ValueError(f"{name} must be {rule}; got {value}")


class Sampler:
    """Draws tokens for one generation; the same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def draw(self, logits: NDArray[np.float32]) -> int:
        """The next token id.

        Args:
            logits: ``[vocab]`` float32.

        Raises:
            LogitsError: a logit is NaN.
        """
        if np.isnan(logits).any():
            raise LogitsError(
                f"logits must be numbers; got {np.isnan(logits).sum()} NaN of {logits.size}: the "
                "weights of the file may be damaged"
            )
        sampling = self.sampling
        if sampling.temperature < GREEDY_BELOW:
            return int(np.argmax(logits))
        ids = _keep_likely(logits, sampling)
        kept = logits[ids].astype(np.float64)
        cumulative = np.cumsum(np.exp((kept - kept.max()) / sampling.temperature))
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])


def _keep_likely(logits: NDArray[np.float32], sampling: Sampling) -> NDArray[np.intp]:
    """Ids that top-k, top-p and min-p leave; of equal logits the lower ids stay longer."""
    ids = _top_k(logits, sampling.top_k) if sampling.top_k else np.arange(logits.size)
    if sampling.top_p < 1:
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        probabilities = _softmax(logits[ids])
        before = np.cumsum(probabilities) - probabilities
        ids = ids[: max(int(np.count_nonzero(before < sampling.top_p)), 1)]
    if sampling.min_p > 0:
        probabilities = _softmax(logits[ids])
        ids = ids[probabilities >= sampling.min_p * probabilities.max()]
    return ids


def _top_k(logits: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """The k largest, without sorting the whole vocabulary."""
    if k >= logits.size:
        return np.arange(logits.size)
    least = np.partition(logits, logits.size - k)[logits.size - k]
    above = np.flatnonzero(logits > least)
    return np.concatenate([above, np.flatnonzero(logits == least)[: k - above.size]])


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())
