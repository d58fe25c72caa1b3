"""``mlx-dsv4 inspect``: the model card of a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from mlx_dsv4.config import ModelConfig
    from mlx_dsv4.gguf import GGUFFile, ModelCard

NAMES_SHOWN = 20


def inspect(
    file: Annotated[Path, typer.Argument(help="GGUF file, loadable or not.")],
) -> None:
    """Print what a GGUF file holds and what keeps it from running; exit code 1 if anything does."""
    from mlx_dsv4.gguf import GGUFFile, model_card
    from mlx_dsv4.ops import MappedFile

    with GGUFFile(file) as opened:
        card = model_card(opened)
        resident = sum(MappedFile(path).resident_bytes() for path in opened.paths)
        faults = _faults_beyond_header(opened, card.config) if card.config else {}
    console = Console(highlight=False, soft_wrap=True)
    _print_file(console, card)
    if card.config is not None:
        _print_config(console, card.config)
        _print_memory(console, card, resident)
        console.print(
            f"KV cache   {card.kv_bytes_per_token:,.0f} bytes per token + "
            f"{card.kv_fixed_bytes:,} fixed (bfloat16 rows)"
        )
    _print_formats(console, card)
    runs = card.runs and not any(faults.values())
    _print_problems(console, card, faults)
    if not runs:
        raise typer.Exit(1)
    console.print("[green]runs[/green]: nothing is missing, wrong or unsupported")


def _faults_beyond_header(file: "GGUFFile", config: "ModelConfig") -> dict[str, list[str]]:
    """What loading refuses besides all that the card lists, under a title each."""
    from mlx_dsv4.engine.load_info import tokenizer_of
    from mlx_dsv4.errors import TokenizerError
    from mlx_dsv4.gguf.values import value_faults
    from mlx_dsv4.model.limits import unmet_limits

    faults = {"wrong values": value_faults(config, file), "tokenizer": []}
    try:
        tokenizer_of(file, config)
    except TokenizerError as error:
        faults["tokenizer"].append(str(error))
    return faults | {"no kernel": unmet_limits(config, "official")}


def _print_file(console: Console, card: "ModelCard") -> None:
    console.print(f"[bold]{escape(card.name)}[/bold]")
    console.print(f"file       {escape(str(card.path))}, {card.n_bytes / 1e9:.3f} GB")
    architecture = escape(card.architecture) or "not named"
    console.print(f"format     GGUF {card.version}, architecture {architecture}")
    if card.architecture:
        console.print(f"release    {card.release or 'not named'}")
    console.print(f"weights    {card.bits_per_weight:.2f} bits per weight on average")


def _print_config(console: Console, config: "ModelConfig") -> None:
    console.print(
        f"shape      {config.layers} layers, hidden {config.hidden}, {config.heads} heads of "
        f"{config.head_dim}, vocabulary {config.vocab}, context {config.context}"
    )
    console.print(
        f"experts    {config.experts_used} of {_counts(config.experts)} "
        f"(hidden {config.expert_hidden}), the first {config.hash_layers} layers by hash"
    )
    console.print(
        f"indexer    {config.indexer_heads} heads of {config.indexer_dim}, "
        f"selects {config.top_k} rows; window {config.window}"
    )
    console.print(f"ratios     {', '.join(str(ratio) for ratio in config.ratios)}")


def _print_memory(console: Console, card: "ModelCard", resident: int) -> None:
    console.print(
        f"memory     {card.file_backed_bytes / 1e9:.3f} GB stay in the file, "
        f"{card.anonymous_bytes / 1e6:.1f} MB are decoded when it is loaded; of the file "
        f"{resident / 1e9:.3f} GB are in memory now"
    )


def _counts(experts: "tuple[int, ...]") -> str:
    least, most = min(experts), max(experts)
    return str(most) if least == most else f"{least} to {most}"


def _print_formats(console: Console, card: "ModelCard") -> None:
    table = Table("format", "tensors", "bytes", "share", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    total = sum(entry.n_bytes for entry in card.formats.values())
    for name, entry in card.formats.items():
        share = entry.n_bytes / max(total, 1)
        table.add_row(name, str(entry.n_tensors), f"{entry.n_bytes:,}", f"{share:.1%}")
    console.print(table)


def _print_problems(console: Console, card: "ModelCard", faults: Mapping[str, list[str]]) -> None:
    if card.config_error:
        console.print(f"[red]cannot run[/red]  {escape(card.config_error)}")
    report = card.tensors
    if report is not None:
        _print_names(console, "missing", list(report.missing))
        for title, rules in (("wrong", report.wrong), ("unsupported", report.unsupported)):
            _print_names(console, title, [f"{name} {rule}" for name, rule in rules.items()])
        _print_names(console, "unmatched", list(report.unmatched))
        _print_names(console, "ignored", list(report.ignored))
    _print_names(console, "keys nobody reads", list(card.unread_keys))
    for title, lines in faults.items():
        _print_names(console, title, lines)


def _print_names(console: Console, title: str, names: list[str]) -> None:
    if not names:
        return
    console.print(f"{title} ({len(names)})")
    for name in names[:NAMES_SHOWN]:
        console.print(f"  {escape(name)}")
    if len(names) > NAMES_SHOWN:
        console.print(f"  and {len(names) - NAMES_SHOWN} more")
