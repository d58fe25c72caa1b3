"""``mlx-dsv4 make-full-size``: write a sparse file with V4-Flash's tensors."""

from pathlib import Path
from typing import Annotated

import typer

from mlx_dsv4.cli.output import refuse_existing


def make_full_size(
    out: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a file of V4-Flash's dims and common formats whose weights are mostly holes.

    It says whether a machine copes with the size, 80.8 GiB of which some 20 MB lie on the disk; its
    answers mean nothing.
    """
    from mlx_dsv4.gguf.full_size import write_full_size

    refuse_existing(out, force=force)
    write_full_size(out)
    found = out.stat()
    typer.echo(
        f"{out}: {found.st_size / 2**30:.1f} GiB, {found.st_blocks * 512 / 1e6:.0f} MB on the disk"
    )
