"""The command line: argument parsing, printing and exit codes, nowhere else.

Exit codes: 0 done, 1 the file, prompt or machine cannot do what was asked, 2 wrong arguments,
130 interrupted.
"""

import os
import sys
from typing import NoReturn

import click
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
        sys.exit(app(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away; keep Python from reporting it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (Dsv4Error, ImportError, OSError) as error:
        typer.echo(f"mlx-dsv4: {error}", err=True)
        sys.exit(1)
