"""How a token's time grows with the tokens before it: V4-Flash's shapes, one layer of each kind.

    python -m benchmarks.growth [TOKENS ...] [--json FILE] [--model FILE]

Caches are filled with random rows, so that a million tokens take seconds. The times of a decoded
token are fitted by a + b * context; beside b stands what the rows that a token reads cost at this
machine's ceilings, measured in the same run.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_dsv4.bench import machine
from mlx_dsv4.bench.cache import fill
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.bench.walk import Subject, decode_us, likeliest, read
from mlx_dsv4.bench.work import row_work
from mlx_dsv4.config import V4_FLASH, ModelConfig
from mlx_dsv4.gguf.tiny import Formats, random_weights, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary

CONTEXTS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20)
DECODED, READ = 16, 64
ROUNDS = 5
FORMATS = Formats(dense="q8_0", experts="mxfp4", embedding="q8_0", output="q8_0")
# Six experts, all of which every token uses, do the work of six among 256.
CONFIG: ModelConfig = replace(
    V4_FLASH,
    name="random V4-Flash, a layer of each kind",
    vocab=1024,
    context=2 << 20,
    layers=3,
    ratios=(0, 4, 128),
    experts=(6,) * 3,
    hash_layers=1,
    clamp=(10.0,) * 3,
    clamp_shared=(10.0,) * 3,
)


@dataclass(slots=True)
class Point:
    """Microseconds at one context, all rounds together.

    Attributes:
        context: Tokens in the cache.
        decode_us: Of each decoded token.
        read_us: Of each token of a call that reads some.
    """

    context: int
    decode_us: list[float]
    read_us: list[float]


def random_model(path: Path) -> None:
    """Write the model; takes 4 GB and a minute."""
    write_model(path, CONFIG, random_weights(CONFIG, 0), FORMATS, make_vocabulary(CONFIG.vocab))


def normal_rows() -> np.ndarray:
    """The bytes of some million normal bfloat16; as float32 they are finite too."""
    values = mx.random.normal((1 << 22,), key=mx.random.key(0)).astype(mx.bfloat16)
    return np.array(values.view(mx.uint8))


def measure(subject: Subject, contexts: Sequence[int]) -> list[Point]:
    """Every context once in each round, so that all of them meet one machine."""
    points = [Point(context, [], []) for context in contexts]
    noise, prompt = normal_rows(), subject.prompt(READ)
    for _ in range(ROUNDS):
        for point in points:
            cache = subject.model.make_cache(point.context + READ + DECODED + 1)
            fill(cache, point.context, noise)
            state, us = read(subject.model, prompt, cache)
            mx.eval(likeliest(subject.model, state))
            point.read_us.append(us / READ)
            point.decode_us += decode_us(subject.model, state, cache, DECODED)[1:]
    return points


def fit(contexts: Sequence[int], us: Sequence[float]) -> tuple[float, float]:
    """a and b of the line a + b * context whose largest relative error is small.

    Each point weighs as much as any other, whatever its size.
    """
    weights = 1 / np.asarray(us)
    slope, start = np.polyfit(np.asarray(contexts, np.float64), np.asarray(us), 1, w=weights)
    return float(start), float(slope)


def explained_us_per_token(config: ModelConfig, contexts: Sequence[int]) -> float:
    """What one more token in the cache costs the next at the ceilings of bytes or operations."""
    first, last = (row_work(config, context) for context in (contexts[0], contexts[-1]))
    span = contexts[-1] - contexts[0]
    bytes_us = (last.n_bytes - first.n_bytes) / machine.read_gb_s() / 1e3
    flops_us = (last.n_flops - first.n_flops) / machine.gflop_s() / 1e3
    return max(bytes_us, flops_us) / span


def report_growth(report: Report, name: str, points: Sequence[Point], explained: float) -> None:
    """A line for each context, and the fit."""
    contexts = [point.context for point in points]
    samples = [point.decode_us if name == "decode" else point.read_us for point in points]
    medians = [statistics.median(us) for us in samples]
    start, slope = fit(contexts, medians)
    for context, median in zip(contexts, medians, strict=True):
        off = (start + slope * context) / median - 1
        words = f"{median:10.1f} us a token, the line is {off:+.1%} off"
        report.figures(
            name, f"@ {context}", words, {"us_p50": round(median, 1), "context": context}
        )
    words = (
        f"{start:10.1f} us + {slope * 1e3:.3f} us per 1000 tokens; at the ceilings "
        f"{explained * 1e3:.3f} us ({explained / slope:.0%})"
    )
    figures = {"a_us": start, "b_us": slope, "ceiling_b_us": explained}
    report.figures(name, "a + b * context", words, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contexts", nargs="*", type=int, default=list(CONTEXTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", type=Path, help="made if it is not there")
    options = parser.parse_args()
    if min(options.contexts) < 1 or len(set(options.contexts)) < 2:
        parser.error("contexts must be at least two different numbers of tokens")
    path = options.model or Path(tempfile.gettempdir()) / "mlx-dsv4-growth.gguf"
    if not path.exists():
        print(f"== writing {path}, 0.7 GB", flush=True)
        random_model(path)
    subject, contexts = Subject.load(path, "official"), sorted(set(options.contexts))
    subject.check_room(contexts[-1], READ + DECODED + 1)
    file = options.json.open("w") if options.json else None
    report = Report(file, subject="measurement")
    report.machine()
    points = measure(subject, contexts)
    explained = explained_us_per_token(subject.model.config, contexts)
    report_growth(report, "decode", points, explained)
    report_growth(report, "prefill", points, explained)
    if file is not None:
        file.close()


if __name__ == "__main__":
    main()
