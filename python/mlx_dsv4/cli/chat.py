"""``mlx-dsv4 chat``: a conversation in one session."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mlx_dsv4.cli import describe, options
from mlx_dsv4.cli.ctrl_c import ctrl_c_calls
from mlx_dsv4.cli.generate import load_engine
from mlx_dsv4.cli.lines import Messages
from mlx_dsv4.cli.show import Printer

if TYPE_CHECKING:
    from mlx_dsv4.cli.conversation import Conversation
    from mlx_dsv4.engine import Engine, Params

HELP = """\
/reset      forget the conversation
/save FILE  keep the conversation and its cache
/load FILE  go on from what /save kept, in place of this conversation
/stats      the model, the session and their memory
/help       this list
/exit       leave, as Ctrl-D does
A line that ends in a backslash goes on in the next one; a space before / makes it text.
Ctrl-C ends an answer, which is then dropped with its question."""


def chat(
    model: options.ModelFile = None,
    demo: options.Demo = False,
    system: Annotated[str | None, typer.Option(help="Text before the first question.")] = None,
    thinking: Annotated[bool, typer.Option(help="Let the model reason before it answers.")] = True,
    effort: Annotated[
        Literal["low", "high", "max"] | None, typer.Option(help="How much it is to reason.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of an answer; default: what the context has.")
    ] = None,
    temperature: options.Temperature = 1.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    context: options.Context = None,
    numerics: options.Numerics = "official",
    device: options.Device = "auto",
    preload: options.Preload = False,
    store: Annotated[
        Path | None, typer.Option(help="Folder where caches are kept and found again.")
    ] = None,
    release: Annotated[
        Literal["preview", "0731"] | None,
        typer.Option(help="Of the model; default: as the file says, else 0731."),
    ] = None,
) -> None:
    """Talk with the model; /help lists what else can be typed.

    Where stdin is no terminal, each line is a message, answers go to stdout without reasoning and
    colours, and the exit code is 1 if anything failed.
    """
    from mlx_dsv4.cli.conversation import Conversation

    path = options.model_file(model, demo)
    params = options.checked_params(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed
    )
    with load_engine(
        path,
        context=context,
        numerics=numerics,
        device=device,
        preload=preload,
        slots=1,
        store=store,
        release=release,
    ) as engine:
        talk = Chat(engine, params, Conversation(system or None, thinking, effort))
        talk.run()
    if talk.failed:
        raise typer.Exit(1)


class Chat:
    """Reads messages and commands, and answers them, until there are no more.

    Attributes:
        failed: Whether a script has had something that could not be done.
    """

    def __init__(self, engine: "Engine", params: "Params", conversation: "Conversation") -> None:
        self._engine = engine
        self._session = engine.session()
        self._params = params
        self._conversation = conversation
        self._messages = Messages()
        self._printer = Printer(terminal=self._messages.interactive)
        self.failed = False
        self._lost = False
        self._commands: dict[str, Callable[[], None]] = {
            "/reset": self._reset,
            "/stats": lambda: print("\n".join(stats(engine))),
            "/help": lambda: print(HELP),
        }
        self._file_commands: dict[str, Callable[[Path], None]] = {
            "/save": self._save,
            "/load": self._load,
        }

    def run(self) -> None:
        """Until /exit, the end of stdin, Ctrl-C at two prompts in a row, or a /load that a script
        cannot have: what it says next is meant for that conversation.
        """
        card = self._engine.info.card
        if self._messages.interactive:
            self._printer.note(f"{card.name or card.path.name}; /help lists commands")
        interrupted = False
        while not self._lost:
            try:
                message = self._messages.next()
                interrupted = False
                if message is None or message.strip() == "/exit":
                    return
                self._handle(message)
            except KeyboardInterrupt:
                if not self._messages.interactive:
                    raise
                print()
                if interrupted:
                    return
                interrupted = True
                self._printer.note("Ctrl-C again, or Ctrl-D, leaves")

    def _handle(self, message: str) -> None:
        from mlx_dsv4.errors import Dsv4Error

        if not message.strip():
            return
        try:
            if message.startswith("/"):
                self._command(message)
            else:
                self._answer(message)
        except BrokenPipeError:
            raise
        except (Dsv4Error, OSError) as error:
            self._fail(describe(error))

    def _answer(self, question: str) -> None:
        stream = self._session.stream_chat(
            self._conversation.messages(question),
            self._params,
            thinking=self._conversation.thinking,
            effort=self._conversation.effort,
        )
        result = self._printer.show(stream, max_tokens=self._params.max_tokens)
        if result.finish_reason != "cancelled":
            self._conversation.add(question, result)
        elif self._messages.interactive:
            self._printer.note("interrupted: the question and this answer are dropped")
        else:
            raise KeyboardInterrupt

    def _command(self, line: str) -> None:
        name, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        self._lost = name == "/load" and not self._messages.interactive  # until it is there
        if name in self._commands:
            if rest:
                self._fail(f"{name} takes nothing; got {rest!r}")
            else:
                self._commands[name]()
        elif name in self._file_commands:
            if rest:
                self._file_commands[name](Path(os.path.expanduser(rest)))
            else:
                self._fail(f"{name} needs the name of a file")
        else:
            self._fail(f"{name} is no command and was not sent; /help lists them")

    def _reset(self) -> None:
        self._session.reset()
        self._conversation.exchanges.clear()
        self._printer.note("the conversation is forgotten")

    def _save(self, path: Path) -> None:
        from mlx_dsv4.cli.conversation import save_conversation
        from mlx_dsv4.engine import Params

        if not self._conversation.exchanges:
            self._fail("/save needs an answer to keep; there is none")
            return
        shared = self._conversation.shared_tokens(self._engine)
        if len(shared) <= self._engine.info.context:
            # Answers are rendered otherwise once they are past: that is what is read next.
            read = self._printer.read(self._session.stream(shared, Params(max_tokens=1)))
            if read.finish_reason == "cancelled":
                self._printer.note("interrupted: nothing is saved")
                return
        with ctrl_c_calls(lambda: None):
            save_conversation(path, self._conversation, self._engine, self._session)
        self._printer.note(f"saved to {path}: {self._size()}")

    def _load(self, path: Path) -> None:
        from mlx_dsv4.cli.conversation import load_conversation

        with ctrl_c_calls(lambda: None):
            self._conversation, missing = load_conversation(path, self._engine, self._session)
        self._lost = False
        if missing is not None:
            self._printer.note(
                f"{missing}, the cache of {path}, is missing: the next question reads the "
                "conversation again; /save then makes another cache"
            )
        self._printer.note(f"loaded from {path}: {self._size()}")

    def _size(self) -> str:
        n_answers = len(self._conversation.exchanges)
        answers = "1 answer" if n_answers == 1 else f"{n_answers} answers"
        return f"{answers}, {len(self._session.tokens)} tokens cached"

    def _fail(self, message: str) -> None:
        end = "; the lines after /load are not sent" if self._lost else ""
        print(f"mlx-dsv4: {message}{end}", file=sys.stderr, flush=True)
        self.failed = not self._messages.interactive


def stats(engine: "Engine") -> list[str]:
    """The model, its slots and memory, a line each."""
    info, status, weights = engine.info, engine.status(), engine.memory()
    (slot,) = status.slots
    kept = ", ".join(map(str, slot.anchors)) or "none"
    return [
        f"model     {info.card.name or info.card.path.name}, {info.numerics} numerics on the "
        f"{info.device}, {info.chat_encoding}",
        f"weights   {in_units(weights.file_backed)} in the file, of which "
        f"{in_units(weights.resident)} are in memory; {in_units(weights.anonymous)} decoded",
        f"session   {slot.tokens} of {info.context} tokens, {in_units(slot.n_bytes)} with room "
        f"for {slot.capacity_tokens}; goes back to {kept}",
        f"scratch   {in_units(status.scratch_bytes)}",
    ]


def in_units(n_bytes: int) -> str:
    """Bytes as a person reads them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"
