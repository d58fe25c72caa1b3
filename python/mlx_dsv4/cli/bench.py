"""``mlx-dsv4 bench``: kernels, models, caches and sessions beside the machine's ceilings."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from mlx_dsv4 import DEMO_MODEL
from mlx_dsv4.bench import FAMILIES, run_family
from mlx_dsv4.bench import cache as cache_bench
from mlx_dsv4.bench import sessions as sessions_bench
from mlx_dsv4.bench import walk as walk_bench
from mlx_dsv4.bench.harness import Report
from mlx_dsv4.cli import options as cli_options
from mlx_dsv4.config import V4_FLASH

app = typer.Typer(
    name="bench", help="Measure this machine.", no_args_is_help=True, add_completion=False
)

JsonLines = Annotated[
    Path | None, typer.Option("--json", help="Also write one JSON line per figure here.")
]


@contextlib.contextmanager
def reporting(json_lines: Path | None, *, subject: str) -> Iterator[Report]:
    """A report to the terminal, and to a file if one is named."""
    with contextlib.ExitStack() as stack:
        file = None if json_lines is None else stack.enter_context(json_lines.open("w"))
        yield Report(file, subject=subject)


@app.callback()
def options() -> None:
    """Measure this machine."""


@app.command()
def kernels(
    families: Annotated[
        list[str] | None, typer.Argument(help="Kernel families; all of them if none is named.")
    ] = None,
    json_lines: JsonLines = None,
) -> None:
    """Time every kernel; each line says what share of the machine's ceilings it reaches."""
    chosen = families or list(FAMILIES)
    unknown = [family for family in chosen if family not in FAMILIES]
    if unknown:
        raise typer.BadParameter(
            f"family must be one of {', '.join(FAMILIES)}; got {', '.join(unknown)}"
        )
    with reporting(json_lines, subject="kernel") as report:
        report.machine()
        for family in chosen:
            typer.echo(f"== {family}")
            run_family(family, report)


@app.command()
def cache(
    capacities: Annotated[
        list[int] | None,
        typer.Argument(
            min=1,
            max=V4_FLASH.context,
            help="Tokens the caches hold.",
            show_default=" ".join(map(str, cache_bench.CAPACITIES)),
        ),
    ] = None,
    json_lines: JsonLines = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Save caches here, on the disk that is to be measured.",
            show_default="the system's folder for temporary files",
        ),
    ] = None,
) -> None:
    """Time full caches: snapshot, restore, branch, grow, save and load, beside plain copies."""
    with (
        reporting(json_lines, subject="operation") as report,
        tempfile.TemporaryDirectory(prefix="mlx-dsv4-bench-", dir=folder) as files,
    ):
        for capacity in capacities or cache_bench.CAPACITIES:
            typer.echo(f"== {capacity} tokens")
            cache_bench.run(report, capacity, Path(files))


Model = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="GGUF file.", show_default="the demo model"),
]


@app.command()
def decode(
    contexts: Annotated[
        list[int] | None,
        typer.Argument(
            min=1,
            help="Tokens before those that are decoded, growing.",
            show_default=f"{' '.join(map(str, walk_bench.CONTEXTS))}, or as many as fit",
        ),
    ] = None,
    model: Model = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="To decode at each context.")
    ] = walk_bench.DECODED_TOKENS,
    numerics: cli_options.Numerics = "official",
    csv: Annotated[
        Path | None, typer.Option(help=f"Also write {walk_bench.CSV_COLUMNS} here.")
    ] = None,
    profiled: Annotated[
        bool,
        typer.Option("--profile", help="Also say where the time goes, kernel by kernel."),
    ] = False,
    json_lines: JsonLines = None,
) -> None:
    """Read a prompt up to each context and decode there: tokens per second over context."""
    if contexts and contexts != sorted(set(contexts)):
        raise typer.BadParameter(f"contexts must grow; got {' '.join(map(str, contexts))}")
    measured = subject(model, numerics)
    steps = max(tokens, walk_bench.PROFILED_TOKENS) if profiled else tokens
    chosen = contexts or measured.default_contexts(steps)
    # What cannot be measured leaves the files of an earlier run as they are.
    measured.check_room(chosen[-1], steps)
    with (
        reporting(json_lines, subject="measurement") as report,
        contextlib.nullcontext() if csv is None else csv.open("w") as table,
    ):
        report.machine()
        walk_bench.decode(report, measured, chosen, tokens, table, profiled=profiled)


@app.command()
def prefill(
    lengths: Annotated[
        list[int] | None,
        typer.Argument(
            min=1,
            help="Tokens of the prompts.",
            show_default=" ".join(map(str, walk_bench.LENGTHS)),
        ),
    ] = None,
    model: Model = None,
    depth: Annotated[int, typer.Option(min=0, help="Tokens that are in the cache before.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Of each length; the median counts.")] = 3,
    numerics: cli_options.Numerics = "official",
    json_lines: JsonLines = None,
) -> None:
    """Time prompts of some lengths, from an empty cache or at a depth."""
    measured, chosen = subject(model, numerics), lengths or walk_bench.LENGTHS
    measured.check_room(depth, max(chosen))
    with reporting(json_lines, subject="measurement") as report:
        report.machine()
        walk_bench.prefill(report, measured, chosen, depth, repeats)


def subject(model: Path | None, numerics: Literal["official", "plain"]) -> walk_bench.Subject:
    """The model to measure; says which it is."""
    path = model or DEMO_MODEL
    typer.echo(f"== {path.name}, {numerics} numerics")
    return walk_bench.Subject.load(path, numerics)


@app.command()
def sessions(
    model: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="GGUF file.",
            show_default="the demo model",
        ),
    ] = None,
    json_lines: JsonLines = None,
) -> None:
    """Time sessions that share a model: 1 to 8 decoding at once, one beside a cold prompt."""
    path = model or DEMO_MODEL
    with reporting(json_lines, subject="measurement") as report:
        typer.echo(f"== {path.name}")
        report.machine()
        sessions_bench.run(report, path)
