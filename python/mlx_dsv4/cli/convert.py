"""``mlx-dsv4 convert``: turn a checkpoint of safetensors files into a GGUF file."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal, NoReturn

import typer

from mlx_dsv4.cli.output import refuse_existing
from mlx_dsv4.cli.progress import byte_progress


def convert(
    checkpoint: Annotated[Path, typer.Argument(help="Folder with config.json and safetensors.")],
    out: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    dense: Annotated[
        Literal["q8_0", "bf16"],
        typer.Option(help="Format of the FP8 matrices; bf16 is exact and twice as large."),
    ] = "q8_0",
    name: Annotated[
        str | None, typer.Option(help="Name of the model; default: that of the folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Convert a DeepSeek-V4 checkpoint, as DeepSeek releases it, to a GGUF file.

    FP4 experts keep their bits; draft layers are left out. The file appears when it is complete.
    """
    from mlx_dsv4.checkpoint import convert as write

    refuse_existing(out, force=force)
    signal.signal(signal.SIGTERM, _end)
    progress = byte_progress("converting")
    task = progress.add_task("weights", total=None)
    begun = time.monotonic()
    with progress:
        done = write(
            checkpoint,
            out,
            dense=dense,
            name=name,
            on_progress=lambda written, total: progress.update(
                task, completed=written, total=total
            ),
        )
    seconds = time.monotonic() - begun
    typer.echo(
        f"{out}: {done.n_tensors} tensors, {done.n_bytes} bytes, {seconds:.1f} s"
        f"{_left_out(done.ignored)}"
    )


def _left_out(ignored: tuple[str, ...]) -> str:
    if not ignored:
        return ""
    parts = dict.fromkeys(".".join(name.split(".")[:2]) for name in ignored)
    return f"; left out {len(ignored)} of draft parts: {', '.join(parts)}"


def _end(number: int, _: FrameType | None) -> NoReturn:
    """End as an error does, so that no unfinished file stays."""
    sys.exit(128 + number)
