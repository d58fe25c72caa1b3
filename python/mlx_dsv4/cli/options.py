"""Options that several commands take, spelled once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from mlx_dsv4.engine import Params

ModelFile = Annotated[Path | None, typer.Option(help="GGUF file of a DeepSeek-V4 model.")]
Demo = Annotated[
    bool, typer.Option("--demo", help="Use the small model of Python code that comes along.")
]
Temperature = Annotated[float, typer.Option(help="0 always takes the likeliest token.")]
TopP = Annotated[float, typer.Option(help="Draw from this much probability.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text.")]
Numerics = Annotated[
    Literal["official", "plain"],
    typer.Option(help="official: as the checkpoint was trained; plain: as transformers."),
]
Device = Annotated[
    Literal["auto", "cpu", "gpu"], typer.Option(help="auto: the GPU, where there are kernels.")
]
Preload = Annotated[bool, typer.Option("--preload", help="Read the whole file into memory first.")]
Context = Annotated[
    int | None,
    typer.Option(min=1, help="Most tokens, prompts and answers; default: the model's."),
]


def model_file(model: Path | None, demo: bool) -> Path:
    """The file of ``--model``, or that of ``--demo``.

    Raises:
        typer.BadParameter: neither is given, or both.
    """
    from mlx_dsv4 import DEMO_MODEL

    if (model is None) != demo:
        got = "neither" if model is None else "both"
        raise typer.BadParameter(f"a model is needed, --model FILE or --demo; got {got}")
    return DEMO_MODEL if model is None else model


def checked_params(**values: Any) -> "Params":
    """Parameters of a generation.

    Raises:
        typer.BadParameter: one is out of its range; says which, the range and the value.
    """
    from mlx_dsv4.engine import Params
    from mlx_dsv4.errors import ParamsError

    try:
        return Params(**values)
    except ParamsError as error:
        raise typer.BadParameter(str(error)) from None
