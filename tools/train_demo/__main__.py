"""``python -m tools.train_demo``: prepare, train, export."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False)

Prepared = Annotated[Path, typer.Option(help="Folder that `prepare` writes.")]
Out = Annotated[Path, typer.Option(help="Folder that `train` writes.")]
PREPARED = Path("build/train_demo/prepared")
OUT = Path("build/train_demo/run")


@app.command()
def prepare(prepared: Prepared = PREPARED) -> None:
    """Read the standard library of this Python; write vocabulary and tokens."""
    from tools.train_demo import prepare as module
    from tools.train_demo.corpus import standard_library

    module.prepare(prepared, list(standard_library()), module.demo_config())


@app.command()
def train(
    prepared: Prepared = PREPARED,
    out: Out = OUT,
    device: Annotated[str, typer.Option(help="Of torch: cpu, cuda, mps.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of weights and rows.")] = 0,
    scale: Annotated[float, typer.Option(help="Of the number of steps.")] = 1.0,
    every: Annotated[int, typer.Option(min=1, help="Steps between lines of the log.")] = 100,
    seconds: Annotated[float | None, typer.Option(help="Stop, to be gone on with.")] = None,
) -> None:
    """Train, or go on where a run was stopped; needs torch and transformers alone."""
    from tools.train_demo.schedule import full_schedule
    from tools.train_demo.train import Run
    from tools.train_demo.train import train as run

    run(Run(prepared, out, device, seed, every, seconds), full_schedule(scale))


if __name__ == "__main__":
    app()
