"""``mlx-dsv4 generate``: stream text from a prompt."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mlx_dsv4.cli.progress import byte_progress

if TYPE_CHECKING:
    from mlx_dsv4.engine import Engine, Sampling, Session, Statistics


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
        typer.Option(min=1, help="Tokens to reserve; default: prompt plus max-tokens."),
    ] = None,
) -> None:
    """Continue a prompt and print the text as it comes.

    The prompt is read as it stands, after the model's BOS token: no chat template is applied.
    """
    from mlx_dsv4.engine import Sampling
    from mlx_dsv4.errors import PromptError

    if not prompt:
        raise PromptError("the prompt is empty: --prompt needs at least one character")
    try:
        sampling = Sampling(temperature, top_k, top_p, min_p, seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    engine = _load(model, numerics, device, preload=preload)
    tokens = [engine.tokenizer.bos_id, *engine.tokenizer.encode(prompt)]
    wanted = len(tokens) + max_tokens - 1
    limit = engine.config.context if context is None else context
    if len(tokens) > limit:
        raise PromptError(f"the prompt must fit the context of {limit} tokens; got {len(tokens)}")
    session = engine.session(context=min(wanted, limit) if context is None else context)
    _stream(session, tokens, max_tokens, sampling)


def _load(
    path: Path,
    numerics: Literal["official", "plain"],
    device: Literal["auto", "cpu", "gpu"],
    *,
    preload: bool,
) -> "Engine":
    from mlx_dsv4.engine import Engine

    progress = byte_progress("reading weights", shown=preload)
    task = progress.add_task("preload", total=None)
    with progress:
        return Engine.load(
            path,
            numerics=numerics,
            device=device,
            preload=preload,
            on_preload=lambda done, total: progress.update(task, completed=done, total=total),
        )


def _stream(session: "Session", tokens: list[int], max_tokens: int, sampling: "Sampling") -> None:
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("reading prompt"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = progress.add_task("prefill", total=len(tokens))
    generation = session.generate(
        tokens,
        max_tokens=max_tokens,
        sampling=sampling,
        on_prefill=lambda done, _: progress.update(task, completed=done),
    )
    pieces = iter(generation)
    with progress:
        first = next(pieces, "")
    try:
        _write(first)
        for piece in pieces:
            _write(piece)
    finally:
        # An interrupted generation ends its line and reports what it did, too.
        _write("\n")
        _print_statistics(console, generation.statistics, max_tokens)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_statistics(console: Console, statistics: "Statistics", max_tokens: int) -> None:
    full = statistics.finish_reason == "length" and statistics.generated_tokens < max_tokens
    reason = "length: the context is full" if full else statistics.finish_reason
    console.print(
        f"{statistics.prompt_tokens} prompt tokens, {statistics.prefill_rate:.1f} tokens/s; "
        f"{statistics.generated_tokens} generated, {statistics.decode_rate:.1f} tokens/s; "
        f"ended by {reason}",
        style="dim",
        highlight=False,
    )
