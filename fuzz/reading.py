"""Everything that reads a model file, from its header to a step of the model, as one call.

An input has to end in success or in an error of this package's, within bounds. What breaks them
ends this process, so that whoever watches it sees a crash, a hang and a greed for memory alike.
"""

import contextlib
import errno
import io
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from fuzz.corpus import corpus
from fuzz.mutations import make_input
from mlx_dsv4 import Engine, Params
from mlx_dsv4.cli.inspect import inspect
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import Dsv4Error
from mlx_dsv4.gguf import GGUFFile, check_tensors
from mlx_dsv4.model import Numerics
from mlx_dsv4.text import Tokenizer

# Of one input; processor time does not pass while others use the machine.
MOST_CPU_S, MOST_S = 5, 60
# What may be mapped beyond what the process holds before it opens a file: a share of the file's
# size, for Python's objects, and a constant, for buffers and the kernels' scratch memory.
MOST_BYTES, MOST_BYTES_PER_BYTE = 32 << 20, 64

_TEXT = "def f(x): return '模型' + 1234567  # naïve\n"
_GREEDY = Params(max_tokens=3, temperature=0.0)


def read_everything(path: Path) -> list[str]:
    """Read a file in every way; one word for each: ``ok`` or the kind of error that refused it.

    Raises:
        Exception: one that is not ours, or that memory has run out.
    """
    ways = (_inspect, _check, _tokenize, _raw_bytes, _run_plain, _run)
    return [_outcome(way, path) for way in ways]


def _outcome(way: Callable[[Path], None], path: Path) -> str:
    try:
        way(path)
    except (Dsv4Error, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise
        return type(error).__name__
    return "ok"


def _inspect(path: Path) -> None:
    """It must say what loading says."""
    said, refusal = io.StringIO(), _outcome(_load, path)
    runs = True
    with contextlib.redirect_stdout(said):
        try:
            inspect(path)
        except typer.Exit:
            runs = False
    if runs != (refusal == "ok"):
        raise AssertionError(f"loading ends in {refusal}; inspect says {said.getvalue()}")


def _load(path: Path) -> None:
    Engine.load(path, device="cpu").close()


def _check(path: Path) -> None:
    with GGUFFile(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        check_tensors(ModelConfig.from_metadata(file.metadata, shapes), file.tensors)


def _tokenize(path: Path) -> None:
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    tokenizer.decode(tokenizer.encode(_TEXT))
    tokenizer.encode(_TEXT + "<think>", special=True)
    tokenizer.decode(range(tokenizer.vocab_size))


def _raw_bytes(path: Path) -> None:
    with GGUFFile(path) as file:
        for name, info in file.tensors.items():
            if info.known:
                file.raw(name).sum()


def _run_plain(path: Path) -> None:
    _run(path, "plain")


def _run(path: Path, numerics: Numerics = "official") -> None:
    with Engine.load(path, context=16, numerics=numerics, device="cpu", warm_up=False) as engine:
        prompt = [token % engine.config.vocab for token in (*range(0, 300, 37), 7)]
        engine.generate(prompt, _GREEDY)


@contextlib.contextmanager
def bounds(n_bytes: int) -> Iterator[None]:
    """Limits of time and memory while an input of ``n_bytes`` is read."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES + MOST_BYTES_PER_BYTE * n_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    # Their signals end the process, wherever it is.
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, MOST_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def read_input(files: dict[str, bytes]) -> list[str]:
    """Write the files of one input and read them within their bounds."""
    with tempfile.TemporaryDirectory(prefix="dsv4-fuzz-") as folder:
        for name, raw in files.items():
            (Path(folder) / name).write_bytes(raw)
        with bounds(sum(map(len, files.values()))):
            return read_everything(Path(folder) / min(files))


def warm_up() -> None:
    """Read every valid file: threads, caches and code are there before memory is counted."""
    for files in corpus():
        read_input({name: bytes(document.encode().raw) for name, document in files.items()})


def main(seed: int, first: int, count: int, seconds: float) -> None:
    """Read inputs one after another and say which, until ``count`` or ``seconds`` are over."""
    warm_up()
    end = time.monotonic() + seconds
    totals: Counter[str] = Counter()
    index = first
    while index < first + count and time.monotonic() < end:
        files = make_input(seed, index)
        print("input", index, flush=True)
        totals[read_input(files)[-1]] += 1
        index += 1
    print("done", index - first, *(f"{name}={n}" for name, n in totals.most_common()), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
