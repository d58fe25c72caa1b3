"""One token timeline: prompt in, text out."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.cache import Cache
from mlx_dsv4.engine.sampling import Sampler, Sampling
from mlx_dsv4.errors import CacheStateError, ClosedError, PromptError
from mlx_dsv4.model import Model
from mlx_dsv4.text import Tokenizer

PREFILL_CHUNK_TOKENS = 512

FinishReason = Literal["stop", "length", "cancelled"]
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Statistics:
    """Counts and times of one generation.

    ``decode_tokens`` are those that needed a step of the model: the first generated token comes
    from the prefill.
    """

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    finish_reason: FinishReason = "cancelled"

    @property
    def decode_tokens(self) -> int:
        return max(self.generated_tokens - 1, 0)

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens per second."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Decoded tokens per second."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


def decode_limit(max_tokens: int, *, context: int, prompt_tokens: int) -> int:
    """How many tokens may be generated: the last sampled one needs no row in the cache."""
    return min(max(max_tokens, 1), context - prompt_tokens + 1)


class Generation:
    """A running generation: iterate over it for pieces of text, then read ``statistics``.

    A piece never ends inside a character. Closing the iterator early ends the generation and
    leaves the session consistent; continuing it after another one has started in the same session
    raises :class:`mlx_dsv4.errors.CacheStateError`.

    Attributes:
        statistics: Final once the iteration has ended.
        tokens: Ids generated so far, a stop token included.
    """

    def __init__(self, pieces: Iterator[str], statistics: Statistics, tokens: list[int]) -> None:
        self._pieces = pieces
        self.statistics = statistics
        self.tokens = tokens

    def __iter__(self) -> Iterator[str]:
        return self._pieces


class Session:
    """One token timeline and the cache that holds it.

    Args:
        model: Shared with other sessions.
        tokenizer: Of the same file.
        cache: Owned by this session.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, cache: Cache) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.cache = cache
        self._running: Statistics | None = None  # of the generation that owns the cache
        self._lock = Lock()

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        on_prefill: Progress | None = None,
    ) -> Generation:
        """Forget what the session holds, read ``prompt`` and generate until a stop token.

        Nothing is computed before the first piece is asked for.

        Args:
            prompt: Token ids, BOS included if the model is to see one.
            max_tokens: Most tokens to generate; the context may allow fewer.
            sampling: How to draw; None takes the defaults of :class:`Sampling`.
            on_prefill: Called with (tokens read, tokens in the prompt) after each chunk.

        Raises:
            PromptError: the prompt is empty or longer than the session's context, or names a
                token outside the vocabulary; the session is as it was.
        """
        context = self.cache.capacity_tokens
        tokens_read = self.model.check_tokens(prompt)
        if len(prompt) > context:
            raise PromptError(
                f"the prompt must fit the context of {context} tokens; got {len(prompt)}"
            )
        limit = decode_limit(max_tokens, context=context, prompt_tokens=len(prompt))
        statistics, tokens = Statistics(prompt_tokens=len(prompt)), list[int]()
        sampler = Sampler(sampling or Sampling())
        pieces = self._run(tokens_read, limit, sampler, statistics, tokens, on_prefill)
        return Generation(pieces, statistics, tokens)

    def _run(
        self,
        prompt: list[int],
        limit: int,
        sampler: Sampler,
        statistics: Statistics,
        tokens: list[int],
        on_prefill: Progress | None,
    ) -> Iterator[str]:
        start = time.perf_counter()
        logits = self._prefill(prompt, statistics, on_prefill)
        statistics.prefill_seconds = time.perf_counter() - start
        text = self.tokenizer.stream()
        while True:
            token = sampler.draw(logits)
            tokens.append(token)
            statistics.generated_tokens = len(tokens)
            if token in self.tokenizer.stop_ids:
                statistics.finish_reason = "stop"
                break
            piece = text.push(token)
            if piece:
                yield piece
            if len(tokens) == limit:
                statistics.finish_reason = "length"
                break
            start = time.perf_counter()
            logits = self._decode(token, statistics)
            statistics.decode_seconds += time.perf_counter() - start
        rest = text.flush()
        if rest:
            yield rest

    def _prefill(
        self, prompt: list[int], statistics: Statistics, on_prefill: Progress | None
    ) -> NDArray[np.float32]:
        """Logits ``[vocab]`` after the prompt, read chunk by chunk into an empty cache."""
        with self._lock:
            self.model.check_open()
            self._running = statistics
            self.cache.reset()
        logits = None
        for first in range(0, len(prompt), PREFILL_CHUNK_TOKENS):
            chunk = prompt[first : first + PREFILL_CHUNK_TOKENS]
            with self._turn(statistics):
                state = self.model.prefill(chunk, self.cache)
                if first + len(chunk) == len(prompt):
                    logits = self._logits(state)
            if on_prefill:
                on_prefill(first + len(chunk), len(prompt))
        assert logits is not None
        return logits

    def _decode(self, token: int, statistics: Statistics) -> NDArray[np.float32]:
        with self._turn(statistics):
            try:
                return self._logits(self.model.step(token, self.cache))
            except ClosedError:
                raise  # nothing was computed
            except BaseException as error:
                self.cache.poison(f"{type(error).__name__} while decoding: {error}")
                raise

    @contextmanager
    def _turn(self, statistics: Statistics) -> Iterator[None]:
        """One call on the model, for the generation that started last; from any thread."""
        with self._lock:
            if self._running is not statistics:
                raise CacheStateError("another generation has started in this session")
            yield

    def _logits(self, state: mx.array) -> NDArray[np.float32]:
        return np.array(self.model.logits(self.model.last_token_state(state))[0])
