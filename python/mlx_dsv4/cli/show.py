"""Printing a generation while it runs."""

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from mlx_dsv4.cli.ctrl_c import ctrl_c_calls
from mlx_dsv4.cli.progress import token_progress

if TYPE_CHECKING:
    from mlx_dsv4.engine import Event, Result, Stream

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
# What a model writes must not move the cursor or change the terminal.
HARMLESS: dict[int, str | None] = {
    code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"
} | {ord("\r"): None}


class Printer:
    """Writes the events of one generation at a time: the answer to stdout, counts to stderr.

    A terminal also sees reasoning, dimmed, and a bar while the prompt is read.

    Args:
        terminal: Whether a person reads stdout on a terminal; None looks.
    """

    def __init__(self, *, terminal: bool | None = None) -> None:
        self._errors = Console(stderr=True)
        self._terminal = sys.stdout.isatty() if terminal is None else terminal
        self._bar: Progress | None = None
        self._reasoned = False

    def show(self, stream: "Stream", *, max_tokens: int | None) -> "Result":
        """Print a generation to its end, which Ctrl-C makes "cancelled".

        Args:
            stream: The generation.
            max_tokens: That it was asked for.
        """
        self._reasoned = False
        try:
            with ctrl_c_calls(stream.cancel):
                for event in stream:
                    self._event(event)
        finally:
            self._end_bar()
            self._write("\n")
        result = stream.result()
        self.note(summary(result, max_tokens))
        return result

    def read(self, stream: "Stream") -> "Result":
        """Show the bar alone, of a generation whose text is of no interest."""
        from mlx_dsv4.engine import Progress as PromptProgress

        try:
            with ctrl_c_calls(stream.cancel):
                for event in stream:
                    if isinstance(event, PromptProgress):
                        self._progress(event.processed, event.total)
        finally:
            self._end_bar()
        return stream.result()

    def note(self, text: str) -> None:
        """A line of no answer, dimmed, on stderr."""
        self._errors.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)

    def _event(self, event: "Event") -> None:
        from mlx_dsv4.engine import Progress as PromptProgress
        from mlx_dsv4.engine import Reasoning, Text, ToolCallDelta

        if isinstance(event, PromptProgress):
            self._progress(event.processed, event.total)
            return
        self._end_bar()
        if isinstance(event, Reasoning):
            self._reason(event.text)
        elif isinstance(event, Text):
            if self._reasoned:
                self._reasoned = False
                self._write("\n\n")
            self._write(self._shown(event.text))
        elif isinstance(event, ToolCallDelta):
            opening = f"\n{event.name} " if event.name else ""
            self._write(opening + self._shown(event.arguments))

    def _reason(self, text: str) -> None:
        if self._terminal:
            self._reasoned = True
            self._write(f"{DIM}{self._shown(text)}{PLAIN}")

    def _progress(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = token_progress(self._errors)
            self._bar.add_task("prefill")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _shown(self, text: str) -> str:
        return text.translate(HARMLESS) if self._terminal else text

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def summary(result: "Result", max_tokens: int | None) -> str:
    """Counts, rates and the end of a generation, in one line."""
    usage, reuse = result.usage, result.reuse
    cached = f" ({usage.cached_tokens} cached: {reuse.kind})" if reuse and reuse.tokens else ""
    full = result.finish_reason == "length" and usage.generated_tokens != max_tokens
    return (
        f"{usage.prompt_tokens} prompt tokens{cached}, {usage.prefill_rate:.1f} tokens/s; "
        f"{usage.generated_tokens} generated, {usage.decode_rate:.1f} tokens/s; "
        f"ended by {'length: the context is full' if full else result.finish_reason}"
    )
