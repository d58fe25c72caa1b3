"""``mlx-dsv4 bench``: kernels and caches beside the machine's ceiling, sessions of one model."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mlx_dsv4.bench import FAMILIES, run_family
from mlx_dsv4.bench import cache as cache_bench
from mlx_dsv4.bench import sessions as sessions_bench
from mlx_dsv4.bench.harness import Report, device_name, read_gb_s
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
    """Time every kernel; each line says what share of the read bandwidth it reaches."""
    chosen = families or list(FAMILIES)
    unknown = [family for family in chosen if family not in FAMILIES]
    if unknown:
        raise typer.BadParameter(
            f"family must be one of {', '.join(FAMILIES)}; got {', '.join(unknown)}"
        )
    with reporting(json_lines, subject="kernel") as report:
        typer.echo(f"device {device_name()}, read bandwidth {read_gb_s():.1f} GB/s")
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


@app.command()
def sessions(
    model: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="GGUF file.",
            show_default="a tiny one with random weights",
        ),
    ] = None,
    json_lines: JsonLines = None,
) -> None:
    """Time sessions that share a model: 1 to 8 decoding at once, one beside a cold prompt."""
    with (
        reporting(json_lines, subject="measurement") as report,
        contextlib.nullcontext(model) if model else sessions_bench.tiny_file() as path,
    ):
        typer.echo(f"== {path.name}, device {device_name()}")
        sessions_bench.run(report, path)
