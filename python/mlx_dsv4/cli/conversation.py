"""A conversation in two files: FILE has the messages, a cache beside it what was read.

FILE is two lines of JSON: what it is, with a digest of the second line; and the conversation, with
the name of its cache. Each save writes a cache of another name and then replaces FILE, so that
FILE always names a cache that was written for it. FILE alone is enough to read it all again.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from xxhash import xxh3_128

from mlx_dsv4.cache.file import replacing
from mlx_dsv4.cache.saved import SavedFile
from mlx_dsv4.errors import DamagedFileError, FileFormatError, PlanError, SnapshotError
from mlx_dsv4.paths import naming, refuse_other_than_file, usable_path
from mlx_dsv4.text.chat import USER, Effort, Message

if TYPE_CHECKING:
    from mlx_dsv4.engine import Engine, Result, Session

FORMAT = "mlx-dsv4 conversation 1"
OPENING = b'{"format": "' + FORMAT.encode() + b'"'


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer.

    Attributes:
        question: Of the user.
        answer: As a message.
    """

    question: str
    answer: Message


@dataclass(slots=True)
class Conversation:
    """What has been said, and how it is rendered.

    Attributes:
        system: Text before the first question; None if there is none.
        thinking: Whether the model reasons before it answers.
        effort: How much.
        exchanges: In order.
    """

    system: str | None
    thinking: bool
    effort: Effort | None
    exchanges: list[Exchange] = field(default_factory=list)

    def messages(self, question: str) -> list[Message]:
        """All of it with one more question."""
        messages: list[Message] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for exchange in self.exchanges:
            messages += [{"role": "user", "content": exchange.question}, exchange.answer]
        return [*messages, {"role": "user", "content": question}]

    def add(self, question: str, result: "Result") -> None:
        """Keep an answer."""
        self.exchanges.append(Exchange(question, result.message))

    def shared_tokens(self, engine: "Engine") -> list[int]:
        """The tokens that the prompt of the next question begins with, whatever it is."""
        encoding, turns = engine.chat_parts()
        prompt = encoding.render(self.messages("?"), thinking=self.thinking, effort=self.effort)
        ids = turns.splice(prompt)
        user = engine.tokenizer.id_of(USER)
        return ids[: len(ids) - ids[::-1].index(user)]


class Loaded(NamedTuple):
    """What :func:`load_conversation` found.

    Attributes:
        conversation: To go on with.
        missing_cache: Where its cache is not, so that it is read again; None if it is there.
    """

    conversation: Conversation
    missing_cache: Path | None


def save_conversation(
    path: Path, conversation: Conversation, engine: "Engine", session: "Session"
) -> None:
    """Write a conversation, the tokens of its answers and what its session holds, in place of
    another conversation.

    Until both are on the disk, a conversation of that name stays as it was.

    Raises:
        FileFormatError: the path is something else than a conversation.
        OSError: a file cannot be written.
    """
    replaced = _named_cache(usable_path(path))
    cache = path.with_name(f"{path.name}.{token_hex(8)}.cache")
    _, turns = engine.chat_parts()
    sampled = turns.records(exchange.answer for exchange in conversation.exchanges)
    fields = {
        "cache": cache.name,
        "tokenizer": engine.model.fingerprint().tokenizer,
        "turns": sampled,
    } | asdict(conversation)
    body = json.dumps(fields, ensure_ascii=False).encode()
    header = {"format": FORMAT, "digest": xxh3_128(body).hexdigest()}
    with naming(path, instead_of=cache):
        try:
            session.save(cache)
            with replacing(path) as file:
                file.write(b"%s\n%s\n" % (json.dumps(header).encode(), body))
        except BaseException:
            cache.unlink(missing_ok=True)
            raise
    if replaced is not None:
        replaced.unlink(missing_ok=True)


def load_conversation(path: Path, engine: "Engine", session: "Session") -> Loaded:
    """Read a conversation, and let a session and its engine go on from it.

    Where its cache is missing the session is empty, and reads it with the next question.

    Raises:
        FileFormatError: the path, or the cache that it names, is something else or damaged.
        SnapshotError, PlanError: the cache is of another model, or too long for the context.
        OSError: a file cannot be read.
        AllocationError: there is no memory for it. The session is as it was, as with the others.
    """
    fields = _read(usable_path(path))
    cache, sampled = path.with_name(fields.pop("cache")), fields.pop("turns")
    tokenizer = fields.pop("tokenizer", None)
    exchanges = [Exchange(**exchange) for exchange in fields.pop("exchanges")]
    found = cache.exists()
    if found:
        _check_options(path, cache, engine)
        session.load(cache)
    else:
        session.reset()
    if found or tokenizer == engine.model.fingerprint().tokenizer:
        _, turns = engine.chat_parts()
        turns.add(sampled)
    return Loaded(Conversation(**fields, exchanges=exchanges), None if found else cache)


def _check_options(path: Path, cache: Path, engine: "Engine") -> None:
    """Refuse a cache that an engine with other options could load; says which."""
    with SavedFile(cache) as saved:
        found, position = saved.fields["fingerprint"], saved.position
    own, context = engine.model.fingerprint(), engine.info.context
    other = "plain" if own.numerics == "official" else "official"
    if found == replace(own, numerics=other).fields():
        raise SnapshotError(
            f"{path}: was saved with {other} numerics; this model runs with {own.numerics} ones: "
            f"start with --numerics {other}"
        )
    if found == own.fields() and position > context:
        room = min(2 * position, engine.config.context)
        raise PlanError(
            f"{path}: needs a context of at least {position} tokens; it has {context}: "
            f"start with --context {room}"
        )


def _named_cache(path: Path) -> Path | None:
    """The cache of the conversation that a path already has; None if that is not known, or if it
    belongs to the conversation that this one is a copy of.
    """
    if not path.exists():
        return None
    refuse_other_than_file(path, "a conversation, to be replaced")
    with path.open("rb") as file:
        if file.read(len(OPENING)) != OPENING:
            raise FileFormatError(f"{path}: exists and is no conversation; choose another name")
    with suppress(DamagedFileError):  # a damaged one is replaced, but names nothing
        name: str = _read(path)["cache"]
        return path.with_name(name) if name.startswith(f"{path.name}.") else None
    return None


def _read(path: Path) -> dict[str, Any]:
    refuse_other_than_file(path, "a conversation from /save")
    with path.open("rb") as file:
        if file.read(len(OPENING)) != OPENING:
            raise FileFormatError(f"{path}: must be a conversation from /save; begins otherwise")
        header, _, body = (OPENING + file.read()).partition(b"\n")
    digest = xxh3_128(body.removesuffix(b"\n")).hexdigest()
    expected = json.dumps({"format": FORMAT, "digest": digest}).encode()
    if header != expected or not body.endswith(b"\n"):
        raise DamagedFileError(
            f"{path}: is damaged or was edited; its digest must be {digest}, "
            f"got {header.removeprefix(OPENING).decode(errors='replace')[:60]!r}"
        )
    fields: dict[str, Any] = json.loads(body)
    return fields
