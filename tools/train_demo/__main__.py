"""``python -m tools.train_demo``: prepare, train, export, measure, plot."""

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    help="Train the demo model, in this order.", no_args_is_help=True, add_completion=False
)

Prepared = Annotated[Path, typer.Option(file_okay=False, help="Folder that `prepare` writes.")]
Out = Annotated[Path, typer.Option(file_okay=False, help="Folder that `train` writes.")]
Scale = Annotated[float, typer.Option(min=0, max=100, help="Of the number of steps.")]
PREPARED = Path("build/train_demo/prepared")
OUT = Path("build/train_demo/run")
MODEL = Path("python/mlx_dsv4/data/demo.gguf")


def need_prepared(folder: Path) -> None:
    """Refuse a folder that lacks what `prepare` writes last."""
    need(folder / "chat.npy", "prepare")


def need(path: Path, command: str) -> None:
    """Refuse to go on without what another command writes."""
    if not path.is_file():
        raise typer.BadParameter(f"{path} must be what `{command}` writes; got no such file")


def need_device(name: str) -> None:
    """Refuse a device that torch does not have here."""
    import torch

    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0][:80]
        raise typer.BadParameter(
            f"--device must be one that torch has here; got {name} ({reason})"
        ) from None


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
    scale: Scale = 1.0,
    every: Annotated[
        int,
        typer.Option(
            min=1, help="Steps from log line to log line; ten times as many between checkpoints."
        ),
    ] = 100,
    seconds: Annotated[float | None, typer.Option(help="Stop, to be gone on with.")] = None,
) -> None:
    """Train, or go on where a run was stopped; needs torch and transformers alone."""
    need_prepared(prepared)
    need_device(device)
    from tools.train_demo.schedule import CPU_TOKENS, full_schedule
    from tools.train_demo.train import CheckpointError, Run
    from tools.train_demo.train import train as run

    schedule = full_schedule(scale, CPU_TOKENS if device == "cpu" else None)
    try:
        run(Run(prepared, out, device, seed, every, seconds), schedule)
    except CheckpointError as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def export(
    prepared: Prepared = PREPARED,
    out: Out = OUT,
    model: Annotated[Path, typer.Option(help="GGUF file to write.")] = MODEL,
) -> None:
    """Write the trained weights as the file that the package ships."""
    need_prepared(prepared)
    need(out / "weights.pt", "train")
    from tools.train_demo import export as module
    from tools.train_demo.prepare import demo_config

    model.parent.mkdir(parents=True, exist_ok=True)
    module.export(prepared, out / "weights.pt", demo_config(), model)
    typer.echo(f"{model}: {model.stat().st_size / 1e6:.2f} MB")


@app.command()
def measure(
    prepared: Prepared = PREPARED,
    out: Out = OUT,
    model: Annotated[Path, typer.Option(help="GGUF file.")] = MODEL,
    files: Annotated[int, typer.Option(min=1, help="Files to read.")] = 4,
    text: Annotated[
        Literal["held_out", "library", "tests"], typer.Option(help="Stream to read from.")
    ] = "held_out",
) -> None:
    """Bits per byte of a text, in torch and in the engine, as a table."""
    need_prepared(prepared)
    need(model, "export")
    from tools.train_demo.measure import CONTEXTS
    from tools.train_demo.measure import measure as lines

    weights = out / "weights.pt"
    typer.echo(f"| bits per byte of {text} at a context of | {' | '.join(map(str, CONTEXTS))} |")
    typer.echo(f"|---|{'---:|' * len(CONTEXTS)}")
    found = weights if weights.exists() else None
    for name, figures in lines(prepared, found, model, files, text=text):
        typer.echo(f"| {name} | {' | '.join(f'{figure:.4f}' for figure in figures)} |")


@app.command()
def plot(
    out: Out = OUT,
    picture: Annotated[Path, typer.Option(help="SVG to write.")] = Path("docs/demo-loss.svg"),
    scale: Scale = 1.0,
) -> None:
    """Draw the losses of the training; needs matplotlib."""
    need(out / "log.jsonl", "train")
    from tools.train_demo.plot import plot as draw
    from tools.train_demo.schedule import full_schedule

    draw(out / "log.jsonl", picture, full_schedule(scale))


if __name__ == "__main__":
    app()
