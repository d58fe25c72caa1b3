"""Sessions that share one model: decoding at once, and beside a prompt that is read.

Tokens are timed when they are drawn, in the thread of the model: what readers do changes nothing.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mlx_dsv4.bench.harness import Report
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.engine import Engine, Event, Params, Serving, Session, Stream
from mlx_dsv4.errors import PlanError
from mlx_dsv4.gguf import GGUFFile

COUNTS = (1, 2, 4, 8)
SHORT_TOKENS = 32
DECODED_TOKENS = 100  # of each session, and by the decoder alone
LONG_TOKENS = 4096
CONTEXT = 2 * LONG_TOKENS


def run(report: Report, model: Path) -> None:
    """Measure sessions of a model that decode at once, then one beside a cold prompt.

    Args:
        report: Takes the figures.
        model: GGUF file; the cold prompt is as long as its context lets it be.

    Raises:
        PlanError: the context ends before sessions that decode can be measured.
        OSError, Dsv4Error: the file cannot be run; see :meth:`mlx_dsv4.engine.Engine.load`.
    """
    serving, context = Serving(), context_of(model)
    with Engine.load(model, context=context, slots=max(COUNTS), serving=serving) as engine:
        bench = Bench(report, engine, serving)
        alone = None
        for count in COUNTS:
            alone = measure_decode(bench, count, alone)
        measure_beside_a_prompt(bench, min(LONG_TOKENS, context))


def context_of(model: Path) -> int:
    """The context to measure with: the model's where that is smaller."""
    with GGUFFile(model) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        context = min(CONTEXT, ModelConfig.from_metadata(file.metadata, shapes).context)
    # The first of several sessions decodes more: until the last one is through.
    least = SHORT_TOKENS + 2 * DECODED_TOKENS
    if context < least:
        raise PlanError(
            f"{model}: the model's context must be at least {least} tokens to be measured; "
            f"got {context}"
        )
    return context


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and what is measured."""

    report: Report
    engine: Engine
    serving: Serving

    def prompt(self, n_tokens: int, seed: int) -> list[int]:
        """Token ids that no other seed begins with."""
        ids = np.random.default_rng((seed, n_tokens)).integers(
            0, self.engine.config.vocab, n_tokens
        )
        return [int(token) for token in ids]

    def start(
        self, session: Session, prompt: Sequence[int], clock: "Clock", most: int | None = None
    ) -> Stream:
        """Greedy decoding that no stop token ends."""
        never = dict.fromkeys(self.engine.tokenizer.stop_ids, -1e30)
        params = Params(max_tokens=most, temperature=0, logit_bias=never, allowed_tokens=clock.tick)
        return session.stream(prompt, params)


@dataclass(slots=True)
class Clock:
    """Notes when each token of a generation is drawn."""

    seconds: list[float] = field(default_factory=list)

    def tick(self, _: Sequence[int]) -> None:
        """For ``Params.allowed_tokens``: allows all."""
        self.seconds.append(time.perf_counter())

    def within(self, start: float, end: float) -> list[float]:
        return [at for at in self.seconds if start <= at <= end]


def measure_decode(bench: Bench, count: int, alone: float | None) -> float:
    """Sessions that decode at once, while all of them do; tokens per second together."""
    clocks = [Clock() for _ in range(count)]
    with ExitStack() as stack:
        streams = []
        for index, clock in enumerate(clocks):
            session = stack.enter_context(bench.engine.session())
            streams.append(bench.start(session, bench.prompt(SHORT_TOKENS, index), clock))
        # The last one begins when all decode.
        read_until(DECODED_TOKENS, streams[-1], clocks[-1])
        for stream in streams:
            stream.cancel()
        for stream in streams:
            stream.result()
    start = max(clock.seconds[0] for clock in clocks)
    end = min(clock.seconds[-1] for clock in clocks)
    rates = [rate(clock.within(start, end)) for clock in clocks]
    together = sum(rates)
    step_us = statistics.median(gaps_us(clocks[0].within(start, end)))
    ratio = together / (alone or together)
    sessions_word = "session" if count == 1 else "sessions"
    bench.report.figures(
        "decode",
        f"{count} {sessions_word}",
        f"{together:9.1f} tokens/s  {ratio:5.2f} x one session  {step_us / 1e3:8.2f} ms a step",
        {
            "sessions": count,
            "tokens_per_s": round(together, 2),
            "ratio": round(ratio, 3),
            "step_us_p50": round(step_us, 2),
        },
    )
    return alone or together


def measure_beside_a_prompt(bench: Bench, n_tokens: int) -> None:
    """One session decodes, alone and then beside a prompt that another one reads."""
    prompt = bench.prompt(n_tokens, len(COUNTS))
    decoder, reader = Clock(), Clock()
    with bench.engine.session() as first, bench.engine.session() as second:
        decoding = bench.start(first, bench.prompt(SHORT_TOKENS, 0), decoder)
        events = read_until(DECODED_TOKENS, decoding, decoder)
        asked = time.perf_counter()
        bench.start(second, prompt, reader, 1).result()
        del events
        decoding.result()
    read = reader.seconds[0]
    report_decoder(bench, "alone", decoder.within(0, asked))
    report_decoder(bench, f"beside {n_tokens} tokens", decoder.within(asked, read))
    seconds = read - asked
    bench.report.figures(
        "prefill",
        f"{n_tokens} tokens beside a decoder",
        f"{n_tokens / seconds:9.1f} tokens/s  {seconds:8.2f} s",
        {"tokens_per_s": round(n_tokens / seconds, 2), "seconds": round(seconds, 3)},
    )
    tokens, steps = bench.serving.slice_tokens, bench.serving.decode_quantum
    bench.report.figures(
        "bound",
        "while sessions decode",
        f"at most {tokens} prompt tokens in a step, then {steps} steps without",
        {"slice_tokens": tokens, "decode_quantum": steps},
    )


def report_decoder(bench: Bench, case: str, seconds: list[float]) -> None:
    gaps = gaps_us(seconds)
    longest, median = max(gaps), statistics.median(gaps)
    bench.report.figures(
        "decoder",
        case,
        f"{rate(seconds):9.1f} tokens/s  longest gap {longest / 1e3:8.2f} ms, median "
        f"{median / 1e3:.2f} ms",
        {
            "tokens_per_s": round(rate(seconds), 2),
            "longest_gap_us": round(longest, 2),
            "gap_us_p50": round(median, 2),
        },
    )


def read_until(n_tokens: int, stream: Stream, clock: Clock) -> Iterator[Event]:
    """Its events from when so many tokens are drawn; dropping them ends the generation."""
    events = iter(stream)
    while len(clock.seconds) < n_tokens:
        next(events)
    return events


def gaps_us(seconds: Sequence[float]) -> list[float]:
    """Microseconds between neighbours."""
    return [float(gap) * 1e6 for gap in np.diff(seconds)]


def rate(seconds: Sequence[float]) -> float:
    """Tokens per second from the first to the last."""
    return (len(seconds) - 1) / (seconds[-1] - seconds[0])
