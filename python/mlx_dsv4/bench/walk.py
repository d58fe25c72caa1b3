"""A model read and decoded at growing contexts, as people compare engines of it.

The walk reads a prompt up to each context once: it decodes there, goes back to a snapshot, and
reads on.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import mlx.core as mx
import numpy as np

from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.profile import STEPS, Step, profile
from mlx_dsv4.bench.work import Work, row_work, weight_work
from mlx_dsv4.cache import Cache
from mlx_dsv4.errors import PlanError
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.model import Model, Numerics, load_weights

CONTEXTS = (128, 512, 2048, 8192)
LENGTHS = (128, 512, 2048)
DECODED_TOKENS = 64
# A call of more would need scratch memory in proportion.
MOST_TOKENS_A_CALL = 2048
# Steps of a profile, rounded up.
PROFILED_TOKENS = 4 * STEPS
CSV_COLUMNS = "ctx_tokens,prefill_tokens,prefill_tps,gen_tokens,gen_tps,kvcache_bytes"

Watch = Callable[[mx.array, Cache], None]  # the last token's state


@dataclass(frozen=True, slots=True)
class Frontier:
    """What was measured at one context.

    Attributes:
        context: Tokens in the cache when decoding began.
        read: Tokens that were read to come here.
        read_us: Microseconds of that.
        decoded: Tokens.
        step_us: Microseconds of each of them.
        cache_bytes: Of a cache that has room for these tokens.
    """

    context: int
    read: int
    read_us: float
    decoded: int
    step_us: list[float]
    cache_bytes: int

    @property
    def read_per_s(self) -> float:
        return self.read / self.read_us * 1e6

    @property
    def decoded_per_s(self) -> float:
        return self.decoded / sum(self.step_us) * 1e6

    @property
    def csv(self) -> str:
        """Values of :data:`CSV_COLUMNS`."""
        rates = f"{self.read},{self.read_per_s:.2f},{self.decoded},{self.decoded_per_s:.2f}"
        return f"{self.context},{rates},{self.cache_bytes}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A loaded model, and what its weights cost a token."""

    model: Model
    weights: Work

    @classmethod
    def load(cls, path: Path, numerics: Numerics) -> "Subject":
        with GGUFFile(path) as file:
            model = Model(load_weights(file), numerics=numerics, device=mx.default_device())
            return cls(model, weight_work(model.config, file.tensors))

    def prompt(self, n_tokens: int) -> list[int]:
        ids = np.random.default_rng(0).integers(0, self.model.config.vocab, n_tokens)
        return [int(token) for token in ids]

    def decode_work(self, context: int) -> Work:
        return self.weights + row_work(self.model.config, context)

    def default_contexts(self, n: int) -> list[int]:
        """:data:`CONTEXTS`, as far as ``n`` more tokens fit the model."""
        most = max(1, self.model.config.context - n)
        return sorted({min(context, most) for context in CONTEXTS})

    def check_room(self, before: int, after: int) -> None:
        """Refuse what does not fit the model, before anything of that size is made.

        Raises:
            PlanError: the context of the model ends before ``before + after`` tokens.
        """
        context = self.model.config.context
        if before + after > context:
            raise PlanError(
                f"contexts must be at most the model's {context} tokens; got {before + after}: "
                f"{before} and {after} after them"
            )


def decode(
    report: Report,
    subject: Subject,
    contexts: Sequence[int],
    n: int,
    csv: TextIO | None = None,
    *,
    profiled: bool = False,
) -> None:
    """Walk the contexts; two lines for each, and one of the CSV file.

    ``profiled`` adds a line for each kernel; see :func:`mlx_dsv4.bench.profile.profile`.
    """
    if csv is not None:
        print(CSV_COLUMNS, file=csv)

    def watch(state: mx.array, cache: Cache) -> None:
        token = likeliest(subject.model, state)
        mx.eval(token)
        case = f"@ d{cache.position}"
        profile(
            report, case, len(subject.model.config.ratios), stepper(subject.model, token, cache)
        )

    for frontier in walk(subject, contexts, n, watch if profiled else None):
        depth = frontier.context - frontier.read
        at = f" @ d{depth}" if depth else ""
        report.figures(
            "prefill",
            f"pp{frontier.read}{at}",
            f"{frontier.read_per_s:9.1f} tokens/s",
            {"tokens_per_s": round(frontier.read_per_s, 2)},
        )
        work = subject.decode_work(frontier.context)
        report(
            "decode",
            f"tg{frontier.decoded} @ d{frontier.context}",
            frontier.step_us,
            n_bytes=work.n_bytes,
            n_flops=work.n_flops,
            figures={
                "tokens_per_s": round(frontier.decoded_per_s, 2),
                "kvcache_bytes": frontier.cache_bytes,
            },
        )
        if csv is not None:
            print(frontier.csv, file=csv, flush=True)


def walk(
    subject: Subject, contexts: Sequence[int], n: int, watch: Watch | None = None
) -> Iterator[Frontier]:
    """Read to each context, decode ``n`` tokens there, go back.

    Args:
        subject: The model.
        contexts: Tokens, growing.
        n: Tokens to decode.
        watch: Called at each context, after that; may move the cache by :data:`PROFILED_TOKENS`.
    """
    model, at = subject.model, 0
    prompt = subject.prompt(contexts[-1])
    cache = model.make_cache(contexts[-1] + max(n, PROFILED_TOKENS if watch else 0))
    read(model, prompt[:5], model.make_cache(8))  # what a first call sets up
    for context in contexts:
        state, us = read(model, prompt[at:context], cache)
        snapshot = cache.snapshot()
        steps = decode_us(model, state, cache, n)
        cache.restore(snapshot)
        if watch is not None:
            watch(state, cache)
            cache.restore(snapshot)
        bytes_there = model.plan_cache(context + n).n_bytes
        yield Frontier(context, context - at, us, n, steps, bytes_there)
        at = context


def read(model: Model, tokens: Sequence[int], cache: Cache) -> tuple[mx.array, float]:
    """The state of the last token, and the microseconds of reading all."""
    begun = time.perf_counter()
    for first in range(0, len(tokens), MOST_TOKENS_A_CALL):
        state = model.prefill(tokens[first : first + MOST_TOKENS_A_CALL], cache)
    return model.last_token_state(state), (time.perf_counter() - begun) * 1e6


def decode_us(model: Model, state: mx.array, cache: Cache, n: int) -> list[float]:
    """Microseconds of each of ``n`` greedy tokens: logits, choice and the next step."""
    token = likeliest(model, state)
    mx.eval(token)
    samples = []
    for _ in range(n):
        begun = time.perf_counter()
        token = likeliest(model, model.step(token, cache))
        mx.eval(token)
        samples.append((time.perf_counter() - begun) * 1e6)
    return samples


def stepper(model: Model, token: mx.array, cache: Cache) -> Step:
    """Goes on from a token greedily, one token a call."""
    last = token

    def step() -> mx.array:
        nonlocal last
        last = likeliest(model, model.step(last, cache))
        return last

    return step


def likeliest(model: Model, state: mx.array) -> mx.array:
    return mx.argmax(model.logits(state), axis=-1).astype(mx.int32)


def prefill(
    report: Report, subject: Subject, lengths: Sequence[int], depth: int, repeats: int
) -> None:
    """Read prompts of some lengths after ``depth`` tokens; the median of some repeats.

    Bytes are left out: what a call reads of the experts depends on the tokens.
    """
    model, longest = subject.model, max(lengths)
    prompt = subject.prompt(depth + longest)
    cache = model.make_cache(depth + longest)
    if depth:
        read(model, prompt[:depth], cache)
    snapshot = cache.snapshot()
    for length in lengths:
        samples = []
        for _ in range(repeats):
            samples.append(read(model, prompt[depth : depth + length], cache)[1])
            cache.restore(snapshot)
        per_token = subject.weights.n_flops
        rows = sum(row_work(model.config, depth + i).n_flops for i in range(length))
        rate = length / statistics.median(samples) * 1e6
        report(
            "prefill",
            f"pp{length}" + (f" @ d{depth}" if depth else ""),
            samples,
            n_bytes=0,
            n_flops=length * per_token + rows,
            figures={"tokens_per_s": round(rate, 2)},
        )
