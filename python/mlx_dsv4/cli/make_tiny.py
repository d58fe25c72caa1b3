"""``mlx-dsv4 make-tiny``: write a small random model of the real architecture."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mlx_dsv4.cli.output import refuse_existing

Format = Literal["f32", "f16", "bf16", "q8_0", "mxfp4"]


def make_tiny(
    out: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same file.")] = 0,
    dense: Annotated[Format, typer.Option(help="Format of the projections.")] = "q8_0",
    experts: Annotated[Format, typer.Option(help="Format of the routed experts.")] = "mxfp4",
    embedding: Annotated[Format, typer.Option(help="Format of the embedding.")] = "bf16",
    output: Annotated[Format, typer.Option(help="Format of the output matrix.")] = "q8_0",
    router: Annotated[Format, typer.Option(help="Format of the routers.")] = "f32",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    elementwise: Annotated[Format, typer.Option(help="Format of norms and biases.")] = "f32",
) -> None:
    """Write a random-weight model with every kind of layer: for tests and demonstrations.

    It has ratios 0, 0, 4, 128, 4, 128, hash and scored experts, and an indexer that selects.
    Its tokenizer is a byte-level BPE with DeepSeek's special tokens. Its text is noise.
    """
    from mlx_dsv4.gguf.tiny import Formats, random_weights, tiny_config, write_model
    from mlx_dsv4.gguf.vocabulary import make_vocabulary

    refuse_existing(out, force=force)
    config = tiny_config()
    formats = Formats(dense, experts, embedding, output, router, elementwise)
    weights = random_weights(config, seed)
    write_model(out, config, weights, formats, make_vocabulary(config.vocab))
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {config.layers} layers")
