"""Choosing the next token from logits."""

from asyncio import CancelledError
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.engine.params import Params
from mlx_dsv4.errors import LogitsError, ParamsError

GREEDY_BELOW = 1e-5
FINITE = np.finfo(np.float32).max


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a generated token was, by the model's own logits.

    Attributes:
        token: Its id.
        logprob: Natural logarithm of its probability.
        top: (id, logprob) of the likeliest tokens, as many as were asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws tokens for one generation; the same seed and logits give the same tokens.

    Args:
        params: How.
        vocab: Logits per token.

    Attributes:
        tokens: Drawn so far.
        logprobs: Of each, if they were asked for.

    Raises:
        ParamsError: ``logit_bias`` names a token outside the vocabulary.
    """

    def __init__(self, params: Params, vocab: int) -> None:
        outside = [token for token in params.logit_bias if token >= vocab]
        if outside:
            raise ParamsError(f"logit_bias must be of ids in 0..{vocab - 1}; got {outside[0]}")
        self.params = params
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self._counts: Counter[int] = Counter()
        self._random = np.random.default_rng(params.seed)

    def draw(self, logits: NDArray[np.float32]) -> int:
        """The next token id.

        Args:
            logits: ``[vocab]`` float32; left as they are.

        Raises:
            LogitsError: a logit is NaN.
            ParamsError: ``allowed_tokens`` returned something else than ``[vocab]`` bool, allowed
                none, or raised what ends threads.
        """
        if np.isnan(logits).any():
            raise LogitsError(
                f"logits must be numbers; got {np.isnan(logits).sum()} NaN of {logits.size}: the "
                "weights of the file may be damaged"
            )
        token = self._draw(self._adjusted(logits))
        if self.params.logprobs is not None:
            self.logprobs.append(token_logprob(logits, token, self.params.logprobs))
        self.tokens.append(token)
        self._counts[token] += 1
        return token

    def _draw(self, logits: NDArray[np.float32]) -> int:
        params = self.params
        if params.temperature < GREEDY_BELOW:
            return int(np.argmax(logits))
        ids = _keep_likely(logits, params)
        kept = logits[ids].astype(np.float64)
        weights = np.exp((kept - kept.max()) / params.temperature)
        cumulative = np.cumsum(weights)
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        # Rounding may reach the end, where tokens without any probability may be.
        return int(ids[min(int(drawn), int(np.flatnonzero(weights)[-1]))])

    def _adjusted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits after bias, mask and penalties; the same array where there are none."""
        params = self.params
        allowed = self._allowed(logits.size)
        penalised = self._counts and (
            params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty
        )
        if not params.logit_bias and allowed is None and not penalised:
            return logits
        logits = logits.copy()
        for token, bias in params.logit_bias.items():
            logits[token] += bias
        if allowed is not None:
            logits[~allowed] = -np.inf
        if penalised:
            self._penalise(logits)
        if np.isneginf(logits).all():
            raise ParamsError("logit_bias and allowed_tokens must leave a token; none is left")
        return logits

    def _penalise(self, logits: NDArray[np.float32]) -> None:
        params = self.params
        ids = np.fromiter(self._counts, np.intp, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(ids))
        repeated = logits[ids]
        # Extremes may overflow: then the largest number, since infinities have no difference.
        with np.errstate(over="ignore", invalid="ignore"):
            scale = np.where(
                repeated > 0, 1 / params.repetition_penalty, params.repetition_penalty
            ).astype(np.float32)
            taken = counts * params.frequency_penalty + params.presence_penalty
            adjusted = np.clip(repeated * scale - taken.astype(np.float32), -FINITE, FINITE)
        logits[ids] = np.where(np.isneginf(repeated), repeated, adjusted)

    def _allowed(self, vocab: int) -> NDArray[np.bool_] | None:
        hook = self.params.allowed_tokens
        if hook is None:
            return None
        try:
            mask = hook(tuple(self.tokens))
        except (SystemExit, KeyboardInterrupt, GeneratorExit, CancelledError) as error:
            # Whoever reads the generation is not whom it was raised for.
            raise ParamsError(
                f"allowed_tokens must return [{vocab}] bool; it raised {type(error).__name__}"
            ) from error
        if mask is None:
            return None
        try:
            allowed = np.asarray(mask)
        except ValueError as error:
            raise ParamsError(f"allowed_tokens must return [{vocab}] bool; {error}") from error
        if allowed.dtype != np.bool_ or allowed.shape != (vocab,):
            raise ParamsError(
                f"allowed_tokens must return [{vocab}] bool; "
                f"got {list(allowed.shape)} {allowed.dtype}"
            )
        return allowed


def token_logprob(logits: NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """The log probability of a token, and of the ``n_top`` likeliest; of equals the lower ids."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    top = _top_k(logits, n_top) if n_top else np.empty(0, np.intp)
    best = sorted(top.tolist(), key=lambda i: (-values[i], i))
    return TokenLogprob(token, float(values[token]), tuple((i, float(values[i])) for i in best))


def _keep_likely(logits: NDArray[np.float32], params: Params) -> NDArray[np.intp]:
    """Ids that top-k, top-p and min-p leave; of equal logits the lower ids stay longer."""
    ids = _top_k(logits, params.top_k) if params.top_k else np.arange(logits.size)
    if params.top_p < 1:
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        probabilities = _softmax(logits[ids])
        before = np.cumsum(probabilities) - probabilities
        ids = ids[: max(int(np.count_nonzero(before < params.top_p)), 1)]
    if params.min_p > 0:
        probabilities = _softmax(logits[ids])
        ids = ids[probabilities >= params.min_p * probabilities.max()]
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
