"""``mlx-dsv4 bench kernels``: the kernels at V4-Flash's shapes, beside the machine's ceiling."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from mlx_dsv4.bench import FAMILIES, run_family
from mlx_dsv4.bench.harness import Report, device_name, read_gb_s

app = typer.Typer(
    name="bench", help="Measure this machine.", no_args_is_help=True, add_completion=False
)


@app.callback()
def options() -> None:
    """Measure this machine."""


@app.command()
def kernels(
    families: Annotated[
        list[str] | None, typer.Argument(help="Kernel families; all of them if none is named.")
    ] = None,
    json_lines: Annotated[
        Path | None, typer.Option("--json", help="Also write one JSON line per figure here.")
    ] = None,
) -> None:
    """Time every kernel; each line says what share of the read bandwidth it reaches."""
    chosen = families or list(FAMILIES)
    unknown = [family for family in chosen if family not in FAMILIES]
    if unknown:
        raise typer.BadParameter(
            f"family must be one of {', '.join(FAMILIES)}; got {', '.join(unknown)}"
        )
    with contextlib.ExitStack() as stack:
        file = None if json_lines is None else stack.enter_context(json_lines.open("w"))
        typer.echo(f"device {device_name()}, read bandwidth {read_gb_s():.1f} GB/s")
        report = Report(file)
        for family in chosen:
            typer.echo(f"== {family}")
            run_family(family, report)
