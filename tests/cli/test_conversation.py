"""The files of a conversation: whole or refused, and never one without the other."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlx_dsv4 import Engine, Params
from mlx_dsv4.cli import conversation as module
from mlx_dsv4.cli.conversation import Conversation, load_conversation, save_conversation
from mlx_dsv4.engine import Session
from mlx_dsv4.errors import DamagedFileError, FileFormatError, PlanError, SnapshotError
from tiny_models import tiny_model

QUESTION = "the rows of a window " * 3


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine.load(tiny_model().path, slots=2, warm_up=False) as engine:
        yield engine


@pytest.fixture
def session(engine: Engine) -> Session:
    return engine.session()


def asked(session: Session, *questions: str, thinking: bool = False) -> Conversation:
    conversation = Conversation(None, thinking, None)
    ask(session, conversation, *questions)
    return conversation


def ask(session: Session, conversation: Conversation, *questions: str) -> None:
    params = Params(max_tokens=20, seed=3)
    for question in questions:
        result = session.chat(
            conversation.messages(question), params, thinking=conversation.thinking
        )
        conversation.add(question, result)


def folder_of(path: Path) -> set[str]:
    return {file.name for file in path.parent.iterdir()}


def caches(path: Path) -> list[Path]:
    return list(path.parent.glob(f"{path.name}.*.cache"))


def test_what_is_loaded_equals_what_was_saved(
    engine: Engine, session: Session, tmp_path: Path
) -> None:
    kept = asked(session, QUESTION, "und «dann»?\n")
    save_conversation(tmp_path / "talk", kept, engine, session)
    with Engine.load(tiny_model().path, slots=1, warm_up=False) as other:
        later = other.session()
        loaded = load_conversation(tmp_path / "talk", other, later).conversation
        assert loaded.messages("x") == kept.messages("x")
        assert later.tokens == session.tokens
        # Not as the text would be cut again: noise is cut otherwise.
        assert loaded.shared_tokens(other) == kept.shared_tokens(engine)
        fresh = Conversation(None, False, None, loaded.exchanges)
        with Engine.load(tiny_model().path, slots=1, warm_up=False) as third:
            assert fresh.shared_tokens(third) != kept.shared_tokens(engine)


def test_shared_tokens_are_the_turns_as_they_were_sampled(engine: Engine, session: Session) -> None:
    """Put together by hand from what was sampled."""
    kept, tokenizer = Conversation(None, False, None), engine.tokenizer
    params = Params(max_tokens=20, seed=3)
    result = session.chat(kept.messages("hello"), params, thinking=False)
    kept.add("hello", result)
    user, assistant, end_think = map(tokenizer.id_of, ("<｜User｜>", "<｜Assistant｜>", "</think>"))
    sampled = [token for token in result.tokens if token != tokenizer.eos_id]
    question = tokenizer.encode("hello")
    turn = [user, *question, assistant, end_think, *sampled, tokenizer.eos_id]
    assert kept.shared_tokens(engine) == [tokenizer.bos_id, *turn, user]


def test_every_changed_byte_and_every_length_is_refused(
    engine: Engine, session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "talk"
    save_conversation(path, asked(session, "hello"), engine, session)
    good, before = path.read_bytes(), session.tokens
    bad = [good[:at] for at in range(len(good))] + [good + b"\n"]
    bad += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(len(good))]
    for content in bad:
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match="talk: "):
            load_conversation(path, engine, session)
    assert session.tokens == before
    path.write_bytes(good)
    assert load_conversation(path, engine, session).conversation.exchanges[0].question == "hello"


def test_a_damaged_or_foreign_cache_is_refused(
    engine: Engine, session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "talk"
    save_conversation(path, asked(session, "hello"), engine, session)
    (cache,) = caches(path)
    good = cache.read_bytes()
    asked(session, "another thing")
    before = session.tokens
    middle = len(good) // 2
    cache.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    with pytest.raises(DamagedFileError):
        load_conversation(path, engine, session)
    with Engine.load(tiny_model(seed=1).path, slots=1, warm_up=False) as other:
        asked(of_other := other.session(), "hello")
        of_other.save(cache)
    with pytest.raises(SnapshotError):
        load_conversation(path, engine, session)
    assert session.tokens == before


def test_a_conversation_without_its_cache_is_read_again(
    engine: Engine, session: Session, tmp_path: Path
) -> None:
    kept = asked(session, QUESTION, "und «dann»?\n")
    save_conversation(tmp_path / "talk", kept, engine, session)
    (cache,) = caches(tmp_path / "talk")
    (tmp_path / "elsewhere").mkdir()
    copy = Path(shutil.copy(tmp_path / "talk", tmp_path / "elsewhere/copy"))
    with Engine.load(tiny_model().path, slots=1, warm_up=False) as other:
        later = other.session()
        asked(later, "another thing")
        loaded = load_conversation(copy, other, later)
        assert loaded.missing_cache == copy.parent / cache.name
        assert loaded.conversation.messages("x") == kept.messages("x")
        # As it was sampled: the text of noise would be cut otherwise.
        assert loaded.conversation.shared_tokens(other) == kept.shared_tokens(engine)
        assert later.tokens == ()
    assert load_conversation(tmp_path / "talk", engine, session).missing_cache is None


def test_tokens_of_another_vocabulary_are_not_taken_over(
    engine: Engine, session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "talk"
    kept = asked(session, QUESTION)
    save_conversation(path, kept, engine, session)
    caches(path)[0].unlink()
    with Engine.load(tiny_model(vocab=1100).path, slots=1, warm_up=False) as other:
        as_text = kept.shared_tokens(other)
        loaded = load_conversation(path, other, other.session()).conversation
        assert loaded.shared_tokens(other) == as_text != kept.shared_tokens(engine)


def test_a_copy_that_is_saved_leaves_the_cache_of_the_other(
    engine: Engine, session: Session, tmp_path: Path
) -> None:
    save_conversation(tmp_path / "talk", asked(session, "hello"), engine, session)
    shutil.copy(tmp_path / "talk", tmp_path / "copy")
    loaded = load_conversation(tmp_path / "copy", engine, session)
    assert loaded.missing_cache is None
    save_conversation(tmp_path / "copy", loaded.conversation, engine, session)
    assert load_conversation(tmp_path / "talk", engine, session).missing_cache is None


def test_other_numerics_and_too_small_a_context_are_told_with_the_option_that_helps(
    engine: Engine, session: Session, tmp_path: Path
) -> None:
    path, model = tmp_path / "talk", tiny_model().path
    save_conversation(path, asked(session, QUESTION), engine, session)
    n_tokens = len(session.tokens)
    with Engine.load(model, slots=1, numerics="plain", warm_up=False) as plain:
        message = (
            f"{path}: was saved with official numerics; this model runs with plain ones: "
            "start with --numerics official"
        )
        with pytest.raises(SnapshotError, match=f"^{re.escape(message)}$"):
            load_conversation(path, plain, plain.session())
    with Engine.load(model, slots=1, context=n_tokens - 1, warm_up=False) as small:
        message = (
            f"{path}: needs a context of at least {n_tokens} tokens; it has {n_tokens - 1}: "
            f"start with --context {2 * n_tokens}"
        )
        with pytest.raises(PlanError, match=f"^{re.escape(message)}$"):
            load_conversation(path, small, small.session())
    with Engine.load(model, slots=1, context=n_tokens, warm_up=False) as enough:
        load_conversation(path, enough, later := enough.session())
        assert len(later.tokens) == n_tokens


def test_saving_again_leaves_one_cache(engine: Engine, session: Session, tmp_path: Path) -> None:
    path = tmp_path / "talk"
    (tmp_path / "talk.mine.cache").write_text("of somebody")
    conversation = asked(session, "hello")
    save_conversation(path, conversation, engine, session)
    (first,) = folder_of(path) - {"talk", "talk.mine.cache"}
    ask(session, conversation, "more")
    save_conversation(path, conversation, engine, session)
    (second,) = folder_of(path) - {"talk", "talk.mine.cache"}
    assert first != second
    assert len(load_conversation(path, engine, session).conversation.exchanges) == 2


def test_until_the_last_write_the_conversation_before_can_be_loaded(
    engine: Engine, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "talk"
    conversation = asked(session, "hello")
    save_conversation(path, conversation, engine, session)
    tokens, names = session.tokens, folder_of(path)
    ask(session, conversation, "more")

    def cut_short(replaced: Path) -> None:
        """Where a crash would leave the most behind."""
        assert replaced == path
        assert len(caches(path)) == 2
        other = engine.session()
        assert len(load_conversation(path, engine, other).conversation.exchanges) == 1
        assert other.tokens == tokens
        other.close()
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(module, "replacing", cut_short)
    with pytest.raises(OSError, match="No space left"):
        save_conversation(path, conversation, engine, session)
    assert folder_of(path) == names


def test_a_damaged_conversation_is_replaced_and_its_caches_left(
    engine: Engine, session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "talk"
    conversation = asked(session, "hello")
    save_conversation(path, conversation, engine, session)
    path.write_bytes(path.read_bytes()[:-5])
    save_conversation(path, conversation, engine, session)
    loaded = load_conversation(path, engine, session).conversation
    assert loaded.messages("") == conversation.messages("")
    assert len(caches(path)) == 2


@pytest.mark.parametrize("content", [b"", b"precious", b"{}"])
def test_what_is_no_conversation_is_not_replaced(
    engine: Engine, session: Session, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "talk"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="exists and is no conversation"):
        save_conversation(path, asked(session, "hello"), engine, session)
    assert path.read_bytes() == content
    assert folder_of(path) == {"talk"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/where", "No such file or directory"),
        ("file/x", "Not a directory"),
        ("x" * 240, "File name too long"),
    ],
)
def test_a_path_that_cannot_be_written_is_named_as_it_was_given(
    engine: Engine, session: Session, tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=reason) as caught:
        save_conversation(tmp_path / name, asked(session, "hello"), engine, session)
    assert caught.value.filename == str(tmp_path / name)
    with pytest.raises(OSError, match=reason) as caught:
        session.save(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)
    assert folder_of(tmp_path / "file") == {"file"}


def test_the_file_is_json_that_people_can_read(
    engine: Engine, session: Session, tmp_path: Path
) -> None:
    path = tmp_path / "talk"
    save_conversation(path, asked(session, "«so»"), engine, session)
    text = path.read_text(encoding="utf-8")
    assert "«so»" in text
    header, body = map(json.loads, text.splitlines())
    assert header["format"] == "mlx-dsv4 conversation 1"
    assert [body["cache"]] == [cache.name for cache in caches(path)]
