"""``mlx-dsv4 generate``: stream text from a prompt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mlx_dsv4.cli import options
from mlx_dsv4.cli.progress import byte_progress
from mlx_dsv4.cli.show import Printer

if TYPE_CHECKING:
    from mlx_dsv4.engine import Engine


def generate(
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    model: options.ModelFile = None,
    demo: options.Demo = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 256,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the generation; may be repeated.")
    ] = None,
    temperature: options.Temperature = 1.0,
    top_p: options.TopP = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from k tokens; 0: all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Least share of the likeliest token.")] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Divides the logits of generated tokens; 1: none.")
    ] = 1.0,
    frequency_penalty: Annotated[
        float, typer.Option(help="Taken from a logit for each time its token was generated.")
    ] = 0.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken from the logit of each generated token once.")
    ] = 0.0,
    seed: options.Seed = None,
    numerics: options.Numerics = "official",
    device: options.Device = "auto",
    preload: options.Preload = False,
    context: options.Context = None,
) -> None:
    """Continue a prompt and print the text as it comes.

    The prompt is read as it stands, after the model's BOS token: no chat template is applied.
    """
    from mlx_dsv4.errors import PromptError

    path = options.model_file(model, demo)
    if not prompt:
        raise PromptError("the prompt is empty: --prompt needs at least one character")
    params = options.checked_params(
        max_tokens=max_tokens,
        stop=stop or (),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        seed=seed,
    )
    with load_engine(
        path, context=context, numerics=numerics, device=device, preload=preload
    ) as engine:
        result = Printer().show(engine.stream(prompt, params), max_tokens=max_tokens)
    if result.finish_reason == "cancelled":
        raise KeyboardInterrupt


def load_engine(
    path: Path,
    *,
    context: int | None,
    numerics: Literal["official", "plain"],
    device: Literal["auto", "cpu", "gpu"],
    preload: bool,
    **others: Any,
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
            **others,
        )
