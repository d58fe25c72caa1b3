"""The command line: argument parsing, printing and exit codes, nowhere else.

Exit codes: 0 done, 1 the file, prompt or machine cannot do what was asked, 2 wrong arguments,
130 interrupted.
"""

import sys
from typing import NoReturn

import typer

from mlx_dsv4 import __version__
from mlx_dsv4.cli.doctor import doctor
from mlx_dsv4.cli.generate import generate
from mlx_dsv4.cli.inspect import inspect
from mlx_dsv4.cli.make_tiny import make_tiny
from mlx_dsv4.errors import Dsv4Error

app = typer.Typer(
    name="mlx-dsv4",
    help="Run DeepSeek-V4-Flash GGUF files on MLX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (generate, inspect, make_tiny, doctor):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlx-dsv4 {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Run DeepSeek-V4-Flash GGUF files on MLX."""


def main() -> NoReturn:
    """Run the program; every foreseen failure is one message and an exit code."""
    try:
        app()
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (Dsv4Error, ImportError) as error:
        _fail(str(error))
    sys.exit(0)


def _fail(message: str) -> NoReturn:
    typer.echo(f"mlx-dsv4: {message}", err=True)
    sys.exit(1)
