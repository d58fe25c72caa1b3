"""Sessions: text against the model's own steps, limits, stops, and what stays after a failure."""

import sys
from pathlib import Path
from threading import Thread

import mlx.core as mx
import numpy as np
import pytest

from mlx_dsv4 import Engine, Sampling
from mlx_dsv4.engine import Session
from mlx_dsv4.errors import AllocationError, CacheStateError, PlanError, PromptError
from tiny_models import tiny_model

TINY = tiny_model()
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load(TINY.path)


@pytest.fixture
def session(engine: Engine) -> Session:
    return engine.session(context=600)


def greedy_tokens(engine: Engine, prompt: list[int], n: int) -> list[int]:
    """What argmax over whole-prompt prefills gives, one fresh cache per token."""
    tokens = list(prompt)
    for _ in range(n):
        state = engine.model.prefill(tokens, engine.model.make_cache(600))
        tokens.append(int(mx.argmax(engine.model.logits(state[-1:])[0]).item()))
    return tokens[len(prompt) :]


def test_greedy_generation_is_argmax_of_whole_prompts(engine: Engine, session: Session) -> None:
    prompt = [engine.tokenizer.bos_id, *engine.tokenizer.encode("for row in rows:")]
    generation = session.generate(prompt, max_tokens=12, sampling=GREEDY)
    text = "".join(generation)
    assert generation.tokens == greedy_tokens(engine, prompt, len(generation.tokens))
    assert text == engine.tokenizer.decode(generation.tokens)
    assert generation.statistics.generated_tokens == len(generation.tokens)
    assert generation.statistics.finish_reason == "length"


def test_a_long_prompt_is_read_in_chunks_with_progress(engine: Engine) -> None:
    session = engine.session(context=1200)
    prompt = [int(t) for t in np.random.default_rng(0).integers(3, 900, 1100)]
    seen: list[tuple[int, int]] = []
    generation = session.generate(
        prompt, max_tokens=1, sampling=GREEDY, on_prefill=lambda *p: seen.append(p)
    )
    assert seen == []  # nothing is computed before it is asked for
    list(generation)
    assert seen == [(512, 1100), (1024, 1100), (1100, 1100)]
    assert generation.statistics.prefill_seconds > 0


def test_a_session_starts_over_with_each_generation(session: Session) -> None:
    texts = ["".join(session.generate([5, 6, 7], max_tokens=6, sampling=GREEDY)) for _ in range(3)]
    assert texts[0] == texts[1] == texts[2]


def test_a_stop_token_ends_it_unprinted(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = session.generate([5, 6, 7], max_tokens=6, sampling=GREEDY)
    list(first)
    monkeypatch.setattr(engine.tokenizer, "stop_ids", frozenset({first.tokens[3]}))
    stopped = session.generate([5, 6, 7], max_tokens=6, sampling=GREEDY)
    text = "".join(stopped)
    stop = first.tokens.index(first.tokens[3])
    assert stopped.tokens == first.tokens[: stop + 1]
    assert text == engine.tokenizer.decode(first.tokens[:stop])
    assert stopped.statistics.finish_reason == "stop"


def test_the_context_is_used_to_the_last_row(engine: Engine) -> None:
    session = engine.session(context=10)
    generation = session.generate(list(range(10)), max_tokens=50, sampling=GREEDY)
    list(generation)
    assert len(generation.tokens) == 1
    generation = session.generate(list(range(4)), max_tokens=50, sampling=GREEDY)
    list(generation)
    assert len(generation.tokens) == 7
    assert session.cache.position == 10


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "at least one token is needed; got none"),
        ("text", "token ids are needed, not text"),
        ([1, 2.5], r"token ids must be integers; got 2\.5 at index 1"),
        ([1] * 601, "must fit the context of 600 tokens; got 601"),
        ([1, 5000], r"token ids must be in 0\.\.1023; got 5000 at index 1"),
    ],
)
def test_a_bad_prompt_changes_nothing(session: Session, prompt: list[int], message: str) -> None:
    list(session.generate([5, 6, 7], max_tokens=2, sampling=GREEDY))
    position = session.cache.position
    with pytest.raises(PromptError, match=message):
        session.generate(prompt)
    assert (session.cache.position, session.cache.poisoned) == (position, False)


def test_stopping_early_leaves_the_session_usable(session: Session) -> None:
    expected = "".join(session.generate([5, 6, 7], max_tokens=8, sampling=GREEDY))
    generation = session.generate([8, 9], max_tokens=8, sampling=GREEDY)
    next(iter(generation))
    assert generation.statistics.finish_reason == "cancelled"
    assert "".join(session.generate([5, 6, 7], max_tokens=8, sampling=GREEDY)) == expected


def test_a_generation_that_was_overtaken_is_refused(session: Session) -> None:
    expected = "".join(session.generate([5, 6, 7], max_tokens=8, sampling=GREEDY))
    overtaken = iter(session.generate([8, 9], max_tokens=8, sampling=GREEDY))
    next(overtaken)
    current = iter(session.generate([5, 6, 7], max_tokens=8, sampling=GREEDY))
    text = next(current)
    with pytest.raises(CacheStateError, match="another generation has started"):
        list(overtaken)
    assert text + "".join(current) == expected


def test_two_threads_on_one_session_get_an_answer_or_an_error(session: Session) -> None:
    expected = "".join(session.generate([5, 6, 7], max_tokens=20, sampling=GREEDY))
    outcomes, errors = list[str](), set[str]()

    def generate() -> None:
        for _ in range(6):
            try:
                outcomes.append(
                    "".join(session.generate([5, 6, 7], max_tokens=20, sampling=GREEDY))
                )
            except CacheStateError as error:
                errors.add(str(error))

    threads = [Thread(target=generate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes
    assert set(outcomes) == {expected}
    assert errors <= {"another generation has started in this session"}


def test_a_failure_while_decoding_poisons_and_the_next_prompt_recovers(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = "".join(session.generate([5, 6, 7], max_tokens=8, sampling=GREEDY))

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    pieces = iter(session.generate([5, 6, 7], max_tokens=8, sampling=GREEDY))
    next(pieces)
    monkeypatch.setattr(type(session.model), "logits", fail)
    with pytest.raises(KeyboardInterrupt):
        list(pieces)
    monkeypatch.undo()
    assert session.cache.poisoned
    with pytest.raises(CacheStateError, match="poisoned"):
        session.model.prefill([1], session.cache)
    assert "".join(session.generate([5, 6, 7], max_tokens=8, sampling=GREEDY)) == expected


@pytest.mark.parametrize("context", [0, 4097])
def test_a_context_out_of_range_is_refused(engine: Engine, context: int) -> None:
    with pytest.raises(PlanError, match=rf"context must be in 1\.\.4096 tokens; got {context}"):
        engine.session(context=context)


def test_a_session_that_does_not_fit_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_dsv4.cache.buffers.available_bytes", lambda: 10_000)
    with pytest.raises(AllocationError, match="10000 are available"):
        engine.session(context=600)


def test_two_engines_in_one_process(engine: Engine) -> None:
    other = Engine.load(tiny_model(seed=1).path, numerics="plain")
    prompt = [5, 6, 7]
    alone = [
        "".join(e.session(context=50).generate(prompt, max_tokens=5, sampling=GREEDY))
        for e in (engine, other)
    ]
    runs = [
        e.session(context=50).generate(prompt, max_tokens=5, sampling=GREEDY)
        for e in (engine, other)
    ]
    pieces = [iter(r) for r in runs]
    together = ["", ""]
    for _ in range(6):
        for i, piece in enumerate(pieces):
            together[i] += next(piece, "")
    assert together == alone
    assert alone[0] != alone[1]


def test_a_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no\.gguf"):
        Engine.load(tmp_path / "no.gguf")


def test_weights_outlive_the_file_object_and_copy_nothing(engine: Engine) -> None:
    if sys.platform == "linux":
        maps = Path("/proc/self/maps").read_text()
        assert str(TINY.path) in maps
