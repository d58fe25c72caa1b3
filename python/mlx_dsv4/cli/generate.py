"""``mlx-dsv4 generate``: stream text from a prompt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mlx_dsv4.cli.progress import byte_progress
from mlx_dsv4.cli.show import Printer

if TYPE_CHECKING:
    from mlx_dsv4.engine import Engine


def generate(
    model: Annotated[Path, typer.Option(help="GGUF file of a DeepSeek-V4 model.")],
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 256,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 always takes the likeliest token.")
    ] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draw from this much probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Draw from k tokens; 0: all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Least share of the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, same text.")] = None,
    numerics: Annotated[
        Literal["official", "plain"],
        typer.Option(help="official: as the checkpoint was trained; plain: as transformers."),
    ] = "official",
    device: Annotated[
        Literal["auto", "cpu", "gpu"], typer.Option(help="auto: the GPU, where there are kernels.")
    ] = "auto",
    preload: Annotated[
        bool, typer.Option("--preload", help="Read the whole file into memory first.")
    ] = False,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens, prompt and answer; default: the model's."),
    ] = None,
) -> None:
    """Continue a prompt and print the text as it comes.

    The prompt is read as it stands, after the model's BOS token: no chat template is applied.
    """
    from mlx_dsv4.engine import Params
    from mlx_dsv4.errors import ParamsError, PromptError

    if not prompt:
        raise PromptError("the prompt is empty: --prompt needs at least one character")
    try:
        params = Params(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
        )
    except ParamsError as error:
        raise typer.BadParameter(str(error)) from None
    with load_engine(
        model, context=context, numerics=numerics, device=device, preload=preload
    ) as engine:
        Printer().show(engine.stream(prompt, params))


def load_engine(
    path: Path,
    *,
    context: int | None,
    numerics: Literal["official", "plain"],
    device: Literal["auto", "cpu", "gpu"],
    preload: bool,
    **options: Any,
) -> "Engine":
    """The engine of a command, which reads its prompt at once: nothing is warmed up before."""
    from mlx_dsv4.engine import Engine

    progress = byte_progress("reading weights", shown=preload)
    task = progress.add_task("preload", total=None)
    with progress:
        return Engine.load(
            path,
            context=context,
            numerics=numerics,
            device=device,
            preload=preload,
            on_preload=lambda done, total: progress.update(task, completed=done, total=total),
            warm_up=False,
            **options,
        )
