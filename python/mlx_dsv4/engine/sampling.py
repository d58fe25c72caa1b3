"""Choosing the next token from logits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        """
        sampling = self.sampling
        if sampling.temperature < GREEDY_BELOW:
            return int(np.argmax(logits))
        ids, kept = _keep_likely(logits.astype(np.float64), sampling)
        weights = np.exp((kept - kept[0]) / sampling.temperature)
        cumulative = np.cumsum(weights)
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])


def _keep_likely(
    logits: NDArray[np.float64], sampling: Sampling
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Ids that top-k, top-p and min-p leave, most likely first, and their logits."""
    ids = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    kept = logits[ids]
    probabilities = np.exp(kept - kept[0])
    probabilities /= probabilities.sum()
    if sampling.top_p < 1:
        before = np.cumsum(probabilities) - probabilities
        count = max(int(np.count_nonzero(before < sampling.top_p)), 1)
        ids, kept, probabilities = ids[:count], kept[:count], probabilities[:count]
    if sampling.min_p > 0:
        likely = probabilities >= sampling.min_p * probabilities[0]
        ids, kept = ids[likely], kept[likely]
    return ids, kept
