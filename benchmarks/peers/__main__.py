"""This package beside other engines: ``python -m benchmarks.peers``; see the README here."""

import json
import math
import platform
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.peers.comparison import Plan, compare
from benchmarks.peers.engines import ENTRIES, OURS, Entry
from benchmarks.peers.processes import ceilings, run
from benchmarks.peers.rows import Row, ratios
from benchmarks.peers.table import ratio_lines, table
from mlx_dsv4.gguf import GGUFFile, model_card

CONTEXTS = "128,512,2048,8192"
DEFAULT_MODEL = Path(tempfile.gettempdir()) / "mlx-dsv4-peers/quarter-width.gguf"


@dataclass(frozen=True, slots=True)
class Subject:
    """The file that all engines run: what is said of it beside the figures."""

    model: str
    parameters: int
    model_bytes: int
    formats: str
    vocab: int

    @classmethod
    def of(cls, path: Path) -> "Subject":
        with GGUFFile(path) as file:
            card = model_card(file)
            parameters = sum(math.prod(info.shape) for info in file.tensors.values())
        if card.config is None:
            raise typer.BadParameter(f"{path} must be a DeepSeek-V4 file: {card.config_error}")
        return cls(card.name, parameters, card.n_bytes, card.quantization, card.config.vocab)

    def __str__(self) -> str:
        size = f"{self.parameters / 1e6:.0f}M parameters, {self.model_bytes / 1e6:.0f} MB"
        return f"{self.model}: {size}, mostly {self.formats}"


def main(
    contexts: Annotated[str, typer.Option(help="Tokens of the prompts.")] = CONTEXTS,
    engines: Annotated[str, typer.Option(help="Names of rows, with commas; empty: all.")] = "",
    ours_only: Annotated[bool, typer.Option("--ours-only", help="Without the peers.")] = False,
    model: Annotated[Path, typer.Option(help="The default is made once.")] = DEFAULT_MODEL,
    decoded: Annotated[int, typer.Option(min=1, help="Tokens to decode after a prompt.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Turns of each engine; medians.")] = 3,
    attempts: Annotated[int, typer.Option(min=1, help="At one turn that is disturbed.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Of each engine.")] = 2,
    timeout: Annotated[float, typer.Option(help="Most seconds of one process.")] = 1800.0,
    json_lines: Annotated[Path | None, typer.Option("--json", help="File to write.")] = None,
) -> None:
    """Prefill, decode and memory of this package and of other engines, on one file."""
    entries, lengths = chosen(engines, ours_only), numbers(contexts)
    if model == DEFAULT_MODEL and not model.exists():
        say(f"writing {model}")
        run("random_model", str(model), timeout_s=timeout)
    subject, limits = Subject.of(model), ceilings(timeout)
    typer.echo(f"{subject}\n{platform.platform()}, {threads} threads")
    typer.echo(f"the machine reads {limits['read_gb_s']} GB/s, {limits['gflop_s']} GFLOP/s")

    plan = Plan(
        model, subject.vocab, entries, lengths, decoded, repeats, attempts, threads, timeout
    )
    shared = {"decoded": decoded, "threads": threads, **limits, **asdict(subject)}
    out = JsonLines(json_lines)
    rows: list[Row] = []
    for at_context in compare(plan, say):
        typer.echo(f"\n{table(at_context)}")
        out.write(row.record() | shared for row in at_context)
        rows += at_context
    found = ratios(rows)
    typer.echo("\n" + (ratio_lines(found) or "no peer to compare with"))
    out.write(asdict(ratio) for ratio in found)


class JsonLines:
    """A file that grows while the run goes on; None for none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.write_text("")

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        if self._path is None:
            return
        with self._path.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def chosen(engines: str, ours_only: bool) -> list[Entry]:
    """The rows that are asked for, in their order."""
    names = [name.strip() for name in engines.split(",") if name.strip()]
    known = [entry.name for entry in ENTRIES]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"engines must be of {', '.join(known)}; got {name}")
    entries = [entry for entry in ENTRIES if not names or entry.name in names]
    return [entry for entry in entries if not ours_only or entry.name.startswith(OURS)]


def numbers(contexts: str) -> list[int]:
    """The contexts that are asked for."""
    try:
        found = [int(context) for context in contexts.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise typer.BadParameter(f"contexts must be numbers >= 1 with commas; got {contexts!r}")
    return found


def say(line: str) -> None:
    typer.echo(f"... {line}", err=True)


if __name__ == "__main__":
    typer.run(main)
