"""Printing a generation while it runs."""

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from mlx_dsv4.cli.progress import token_progress

if TYPE_CHECKING:
    from mlx_dsv4.engine import Event, Result, Stream

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Printer:
    """Writes the events of one generation: the answer to stdout, all else for a terminal alone.

    Reasoning is dimmed. While the prompt is read, a bar is shown.
    """

    def __init__(self) -> None:
        self._errors = Console(stderr=True)
        self._terminal = sys.stdout.isatty()
        self._bar: Progress | None = None
        self._reasoned = False

    def show(self, stream: "Stream") -> "Result":
        """Print a generation to its end; Ctrl-C ends it.

        Raises:
            KeyboardInterrupt: after what it did until then has been printed.
        """
        interrupted = False
        try:
            for event in stream:
                self._event(event)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._end_bar()
        result = stream.result()
        self._write("\n")
        self._summary(result)
        if interrupted:
            raise KeyboardInterrupt
        return result

    def _event(self, event: "Event") -> None:
        from mlx_dsv4.engine import Progress as PromptProgress
        from mlx_dsv4.engine import Reasoning, Text, ToolCallDelta

        if isinstance(event, PromptProgress):
            self._progress(event.processed, event.total)
            return
        self._end_bar()
        if isinstance(event, Reasoning):
            self._reasoned = True
            self._write(f"{DIM}{event.text}{PLAIN}" if self._terminal else event.text)
        elif isinstance(event, Text):
            if self._reasoned:
                self._reasoned = False
                self._write("\n\n")
            self._write(event.text)
        elif isinstance(event, ToolCallDelta):
            self._write(f"\n{event.name} {event.arguments}" if event.name else event.arguments)

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

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _summary(self, result: "Result") -> None:
        usage, reuse = result.usage, result.reuse
        cached = f" ({usage.cached_tokens} cached: {reuse.kind})" if reuse and reuse.tokens else ""
        self._errors.print(
            f"{usage.prompt_tokens} prompt tokens{cached}, {usage.prefill_rate:.1f} tokens/s; "
            f"{usage.generated_tokens} generated, {usage.decode_rate:.1f} tokens/s; "
            f"ended by {result.finish_reason}",
            style="dim",
            highlight=False,
        )
