"""The commands of the program, as one typer application."""

import typer

from mlx_dsv4 import __version__
from mlx_dsv4.cli import bench
from mlx_dsv4.cli.chat import chat
from mlx_dsv4.cli.convert import convert
from mlx_dsv4.cli.doctor import doctor
from mlx_dsv4.cli.generate import generate
from mlx_dsv4.cli.inspect import inspect
from mlx_dsv4.cli.make_full_size import make_full_size
from mlx_dsv4.cli.make_tiny import make_tiny

app = typer.Typer(
    name="mlx-dsv4",
    help="Run DeepSeek-V4-Flash GGUF files on MLX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (generate, chat, inspect, convert, make_tiny, make_full_size, doctor):
    app.command()(command)
app.add_typer(bench.app)


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
