"""Sessions: their tokens against cold steps of the model, what is reused, and what stays after
a cancel or a failure."""

import time
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from cold import CONTEXT, GREEDY, check_cold, cold_tokens, load, random_prompt, script
from mlx_dsv4 import Engine, Params, Session
from mlx_dsv4.engine import Done, Progress, Serving, Text
from mlx_dsv4.errors import (
    ParamsError,
    PromptError,
)
from tiny_models import tiny_model

EVERY_KIND = [
    GREEDY,
    Params(max_tokens=12, seed=5),
    Params(max_tokens=12, temperature=0.7, top_p=0.9, top_k=40, min_p=0.01, seed=1),
    Params(max_tokens=12, temperature=0, repetition_penalty=1.3, frequency_penalty=0.4),
    Params(max_tokens=12, seed=2, logit_bias={5: 3.0, 7: -100.0}, presence_penalty=0.5),
    Params(max_tokens=12, seed=3, logprobs=3),
]


@pytest.mark.parametrize("params", EVERY_KIND, ids=range(len(EVERY_KIND)))
def test_streaming_or_not_gives_what_the_models_steps_give(
    engine: Engine, session: Session, params: Params
) -> None:
    prompt = [engine.tokenizer.bos_id, *engine.tokenizer.encode("for row in rows:")]
    result = session.generate(prompt, params)
    check_cold(engine, result, params)
    assert result.text == engine.tokenizer.decode(result.tokens, control=False)
    assert (result.finish_reason, result.usage.generated_tokens) == ("length", params.max_tokens)
    *events, last = session.stream(prompt, params)
    assert isinstance(last, Done)
    assert last.result.tokens == result.tokens
    assert last.result.logprobs == result.logprobs
    assert "".join(e.text for e in events if isinstance(e, Text)) == result.text
    told = tuple(lp for e in events if isinstance(e, Text) for lp in e.logprobs)
    assert told == result.logprobs[: len(told)]
    assert len(result.logprobs) == (12 if params.logprobs else 0)


def test_text_is_read_after_bos(engine: Engine, session: Session) -> None:
    result = session.generate("for row in rows:", GREEDY)
    encoded = engine.tokenizer.encode("for row in rows:")
    assert list(result.prompt) == [engine.tokenizer.bos_id, *encoded]


def test_progress_comes_first_and_reaches_the_whole_prompt(session: Session) -> None:
    events = list(session.stream(random_prompt(500), GREEDY))
    progress = [e for e in events if isinstance(e, Progress)]
    assert events[: len(progress)] == progress
    assert (progress[0].processed, progress[0].rate) == (0, 0.0)
    assert (progress[-1].processed, progress[-1].total) == (500, 500)
    assert progress[-1].rate > 0


def test_a_conversation_goes_on_from_what_is_held(engine: Engine, session: Session) -> None:
    first = session.generate(random_prompt(150), GREEDY)
    assert (first.reuse.kind, first.usage.cached_tokens) == ("reset", 0)
    prompt = [*first.prompt, *first.tokens, 9, 10, 11]
    second = session.generate(prompt, GREEDY)
    # The last token was sampled and never read.
    assert (second.reuse.kind, second.usage.cached_tokens) == ("live", 150 + 7)
    check_cold(engine, second, GREEDY)
    assert session.tokens == (*prompt, *second.tokens[:-1])


def test_an_edited_turn_goes_on_from_the_anchor_before_it(engine: Engine, session: Session) -> None:
    first = session.generate(random_prompt(200), GREEDY)
    second = session.generate([*first.prompt, *random_prompt(190, 1)], GREEDY)
    prompt = [*second.prompt[:300], *random_prompt(60, 2)]
    third = session.generate(prompt, GREEDY)
    # The second prompt's anchor, at 390 - 8, is behind the edit; the first one's is before it.
    assert (third.reuse.kind, third.reuse.tokens, third.reuse.diverged_at) == ("anchor", 192, 300)
    check_cold(engine, third, GREEDY)


def test_the_same_prompt_again_goes_on_from_its_anchor(engine: Engine, session: Session) -> None:
    first = session.generate(random_prompt(150), GREEDY)
    again = session.generate(random_prompt(150), GREEDY)
    assert (again.reuse.kind, again.reuse.tokens) == ("anchor", 142)
    assert again.tokens == first.tokens


@pytest.mark.parametrize("length", [127, 128, 129, 255, 256, 257, 384, 511, 512, 513])
@pytest.mark.parametrize("suffix", [1, 2, 8, 33])
def test_lengths_around_the_borders(
    engine: Engine, session: Session, length: int, suffix: int
) -> None:
    """Prefix A then suffix B is A + B read at once; so is B in place of another one."""
    session.generate(random_prompt(length), GREEDY)
    for seed in (1, 2):
        result = session.generate([*random_prompt(length), *random_prompt(suffix, seed)], GREEDY)
        # From the end of the prefix, or an anchor at most eight tokens before it.
        assert result.reuse.tokens in (0, *range(length - 8, length + 1))
        check_cold(engine, result, GREEDY)


def test_a_whole_prompt_is_reused_with_its_logits(engine: Engine, session: Session) -> None:
    prompt = random_prompt(150)
    first = session.generate(prompt, replace(GREEDY, max_tokens=1))
    again = session.generate(prompt, GREEDY)
    assert (again.reuse.kind, again.reuse.tokens) == ("live", 150)
    assert again.tokens[:1] == first.tokens
    check_cold(engine, again, GREEDY)


def test_a_short_shared_prefix_is_computed_again(engine: Engine, session: Session) -> None:
    session.generate(random_prompt(40), GREEDY)
    result = session.generate([*random_prompt(40), *random_prompt(60, 1)], GREEDY)
    assert (result.reuse.kind, result.reuse.tokens) == ("reset", 0)
    check_cold(engine, result, GREEDY)


def test_snapshots_are_kept_within_their_bytes() -> None:
    one = tiny_model().load("official").make_cache(CONTEXT).plan.snapshot_bytes
    with load(serving=Serving(anchor_bytes=2 * one + 1), slots=1) as engine:
        for n in (150, 250, 350):
            engine.generate(random_prompt(n), GREEDY)
        (slot,) = engine.status().slots
        assert slot.anchors == (242, 342)
        engine.generate([*random_prompt(245), 5], GREEDY)  # goes on from 242, by an anchor
        engine.generate([*random_prompt(245), *random_prompt(200, 1)], GREEDY)
        (slot,) = engine.status().slots
        assert slot.anchors == (242, 437)


def test_no_anchor_is_kept_where_none_fits() -> None:
    with load(serving=Serving(anchor_bytes=10)) as engine:
        engine.generate(random_prompt(200), GREEDY)
        result = engine.generate(random_prompt(200), GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("reset", 0)


def test_a_stop_token_ends_it_unprinted(engine: Engine, session: Session) -> None:
    whole = session.generate(random_prompt(20), GREEDY)
    stop = whole.tokens[3]
    params = replace(GREEDY, stop_ids=[stop])
    stopped = session.generate(random_prompt(20), params)
    end = whole.tokens.index(stop)
    assert stopped.tokens == whole.tokens[: end + 1]
    assert stopped.text == engine.tokenizer.decode(whole.tokens[:end], control=False)
    assert stopped.finish_reason == "stop"
    check_cold(engine, stopped, params)


def test_the_models_own_end_ends_it(engine: Engine, session: Session) -> None:
    tokens = [*engine.tokenizer.encode("yes"), engine.tokenizer.eos_id]
    params = Params(allowed_tokens=script(tokens, engine.config.vocab))
    result = session.generate([5, 6], params)
    assert (result.text, result.finish_reason) == ("yes", "stop")
    assert list(result.tokens) == tokens


@pytest.mark.parametrize("stop", [["wor"], ["o, w"], ["lo", "zz"], ["!", "hello, world!?"]])
def test_a_stop_string_is_found_across_tokens(
    engine: Engine, session: Session, stop: list[str]
) -> None:
    text = "hello, world! And more."
    tokens = [engine.tokenizer.encode(c)[0] for c in text]
    params = Params(
        max_tokens=len(tokens), stop=stop, allowed_tokens=script(tokens, engine.config.vocab)
    )
    events = list(session.stream([5, 6], params))
    visible = "".join(e.text for e in events if isinstance(e, Text))
    expected = min((text.partition(s)[0] for s in stop if s in text), key=len)
    result = events[-1].result
    assert (visible, result.text, result.finish_reason) == (expected, expected, "stop")
    assert len(result.tokens) < len(tokens)


def test_what_a_stop_string_might_have_begun_is_not_lost(engine: Engine, session: Session) -> None:
    tokens = [engine.tokenizer.encode(c)[0] for c in "hello wor"]
    params = Params(
        max_tokens=len(tokens), stop="world", allowed_tokens=script(tokens, engine.config.vocab)
    )
    *events, done = session.stream([5, 6], params)
    assert "".join(e.text for e in events if isinstance(e, Text)) == "hello wor"
    assert (done.result.text, done.result.finish_reason) == ("hello wor", "length")


def test_the_context_is_used_to_the_last_row() -> None:
    with load(context=10) as engine, engine.session() as session:
        assert len(session.generate(list(range(10)), Params(temperature=0)).tokens) == 1
        result = session.generate(list(range(4)), Params(temperature=0))
        assert (len(result.tokens), result.finish_reason) == (7, "length")
        assert len(session.tokens) == 10
        check_cold(engine, result, Params(temperature=0))


def test_a_cache_grows_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_dsv4.engine.slot.LEAST_CAPACITY_TOKENS", 16)
    with load(slots=1) as engine, engine.session() as session:
        never = dict.fromkeys(engine.tokenizer.stop_ids, -100.0)
        params = Params(temperature=0, logit_bias=never)
        stream = session.stream(random_prompt(20), params)
        for event in stream:
            if isinstance(event, Text) and len(session.tokens) > 150:
                stream.cancel()
        result = stream.result()
        expected = cold_tokens(
            engine, result.prompt, replace(params, max_tokens=len(result.tokens))
        )
        assert list(result.tokens) == expected
        (slot,) = engine.status().slots
        assert slot.capacity_tokens == 256
        longer = session.generate([*result.prompt, *result.tokens, *random_prompt(100, 1)], GREEDY)
        assert longer.reuse.kind == "live"
        check_cold(engine, longer, GREEDY)


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ([], GREEDY, PromptError, "at least one token is needed; got none"),
        (None, GREEDY, PromptError, "prompt must be text or token ids; got None"),
        (5, GREEDY, PromptError, "prompt must be text or token ids; got 5"),
        ("", GREEDY, PromptError, "at least one token is needed; got none"),
        ([1, 2.5], GREEDY, PromptError, r"token ids must be integers; got 2\.5 at index 1"),
        ([1] * 601, GREEDY, PromptError, "must fit the context of 600 tokens; got 601"),
        ([1, 5000], GREEDY, PromptError, r"token ids must be in 0\.\.1023; got 5000 at index 1"),
        ("\udc80", GREEDY, PromptError, "lone surrogate"),
        ([1], Params(logit_bias={1024: 1.0}), ParamsError, r"in 0\.\.1023; got 1024"),
        ([1], Params(stop_ids=[1024]), ParamsError, r"in 0\.\.1023; got 1024"),
    ],
)
def test_bad_input_changes_nothing(
    session: Session, prompt: object, params: Params, error: type[Exception], message: str
) -> None:
    session.generate([5, 6, 7], GREEDY)
    tokens = session.tokens
    with pytest.raises(error, match=message):
        session.stream(prompt, params)
    assert session.tokens == tokens


def test_a_decode_step_makes_no_arrays_that_stay(engine: Engine, session: Session) -> None:
    session.generate(random_prompt(50), Params(max_tokens=20, temperature=0))
    before = mx.get_active_memory()
    session.generate(random_prompt(50), Params(max_tokens=200, temperature=0))
    assert mx.get_active_memory() <= before


def test_times_add_up(session: Session) -> None:
    start = time.perf_counter()
    usage = session.generate(random_prompt(150), GREEDY).usage
    elapsed = time.perf_counter() - start
    parts = (usage.queue_seconds, usage.prefill_seconds, usage.decode_seconds)
    assert all(part >= 0 for part in parts)
    assert sum(parts) <= elapsed
    assert usage.queue_seconds + usage.prefill_seconds <= usage.first_text_seconds <= elapsed
    assert np.isclose(usage.decode_rate * usage.decode_seconds, 7)
