"""Several sessions over one model: who gets which slot, in which order, and that none of it
changes an answer."""

import logging
from dataclasses import replace
from itertools import pairwise
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from cold import GREEDY, check_cold, load, random_prompt
from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Result, Serving, Text
from mlx_dsv4.errors import AllocationError, SlotError
from mlx_dsv4.model import Model
from tiny_models import tiny_model


def long_for(engine: Engine) -> Params:
    """A generation that no stop token ends."""
    never = dict.fromkeys(engine.tokenizer.stop_ids, -1e3)
    return Params(max_tokens=200, temperature=0, logit_bias=never)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The lengths that each call of the model read, one per session in it."""
    seen: list[list[int]] = []
    advance = Model.advance

    def recorded(self: Model, batch: list) -> object:
        seen.append([len(tokens) for tokens, _ in batch])
        return advance(self, batch)

    monkeypatch.setattr(Model, "advance", recorded)
    return seen


def hold_back(engine: Engine) -> SimpleNamespace:
    """Stop the engine between two steps until it is let go, so that requests arrive together."""
    entered, go = Event(), Event()

    def wait() -> None:
        entered.set()
        assert go.wait(30)

    Thread(target=engine._scheduler.call, args=(wait,)).start()
    assert entered.wait(30)
    return SimpleNamespace(let_go=go.set)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_sessions_that_decode_together_get_what_they_get_alone(
    calls: list[list[int]], n: int
) -> None:
    with load(slots=n) as engine:
        params = replace(long_for(engine), max_tokens=20 * n)
        prompts = [random_prompt(20 + 37 * i, i) for i in range(n)]
        held = hold_back(engine)
        streams = [engine.stream(prompt, params) for prompt in prompts]
        held.let_go()
        results = [stream.result() for stream in streams]
        assert [1] * n in calls  # all of them in one call
        together = list(calls)
        for result in results:
            check_cold(engine, result, params)
        assert len(together) < 20 * n * n or n == 1


def test_seeded_draws_do_not_depend_on_company() -> None:
    with load(slots=3) as engine:
        params = [Params(max_tokens=30, seed=seed, temperature=1.2) for seed in range(3)]
        streams = [engine.stream(random_prompt(50, i), p) for i, p in enumerate(params)]
        for stream, p in zip(streams, params, strict=True):
            check_cold(engine, stream.result(), p)


@pytest.mark.parametrize(("slice_tokens", "quantum"), [(128, 4), (32, 1), (64, 0)])
def test_a_cold_prompt_takes_no_more_of_a_decoders_time_than_is_promised(
    calls: list[list[int]], slice_tokens: int, quantum: int
) -> None:
    serving = Serving(slice_tokens=slice_tokens, decode_quantum=quantum)
    with load(slots=2, serving=serving) as engine:
        params = long_for(engine)
        decoding = engine.stream(random_prompt(30), params)
        events = iter(decoding)
        next(e for e in events if isinstance(e, Text))
        calls.clear()
        cold = engine.stream(random_prompt(500, 1), GREEDY).result()
        during = list(calls)
        check_cold(engine, cold, GREEDY)
        *_, done = events
        check_cold(engine, done.result, params)
    sliced = [i for i, lengths in enumerate(during) if max(lengths) > 1]
    beside = [i for i in sliced if len(during[i]) == 2]
    assert len(beside) >= 500 // slice_tokens - 1
    for lengths in during:
        assert max(lengths) <= slice_tokens or len(lengths) == 1
    gaps = [b - a - 1 for a, b in pairwise(beside)]
    assert min(gaps, default=quantum) >= quantum


def test_two_cold_prompts_take_turns(calls: list[list[int]]) -> None:
    with load(slots=2) as engine:
        held = hold_back(engine)
        long_one = engine.stream(random_prompt(590), GREEDY)
        short = engine.stream(random_prompt(100, 1), GREEDY)
        held.let_go()
        first_lengths = (short.result().usage, long_one.result().usage)
    assert [lengths[0] for lengths in calls[:2]] == [128, 92]
    assert first_lengths[0].prefill_seconds < first_lengths[1].prefill_seconds


def test_requests_are_served_in_the_order_of_their_arrival() -> None:
    with load(slots=1) as engine:
        order: list[int] = []
        held = hold_back(engine)
        streams = [
            engine.stream([5, 6, seed], replace(GREEDY, allowed_tokens=told(order, seed)))
            for seed in range(5)
        ]
        streams[3].cancel()
        held.let_go()
        results = [stream.result() for stream in streams]
        assert order == [0, 1, 2, 4]
        assert [r.finish_reason == "cancelled" for r in results] == [False] * 3 + [True, False]
        assert results[3].reuse is None


def told(order: list[int], number: int):
    def hook(tokens: tuple[int, ...]) -> None:
        if not tokens:
            order.append(number)

    return hook


def test_one_that_waits_for_its_session_lets_others_pass() -> None:
    with load(slots=2) as engine, engine.session() as session:
        order: list[int] = []
        held = hold_back(engine)
        first = session.stream(random_prompt(20), long_for(engine))
        second = session.stream([5, 6, 7], replace(GREEDY, allowed_tokens=told(order, 2)))
        third = engine.stream([5, 6, 8], replace(GREEDY, allowed_tokens=told(order, 3)))
        held.let_go()
        for stream in (third, first, second):
            stream.result()
        assert order == [3, 2]


def test_the_slot_with_the_longest_prefix_is_chosen_then_an_empty_one_then_the_oldest() -> None:
    with load(slots=3) as engine:
        one, other = random_prompt(200, 1), random_prompt(300, 2)

        def tokens() -> list[int]:
            return [slot.tokens for slot in engine.status().slots]

        engine.generate(one, GREEDY)
        engine.generate(other, GREEDY)
        assert tokens() == [207, 307, 0]  # an empty one for what nobody has
        again = engine.generate([*one, *random_prompt(50, 3)], GREEDY)
        assert again.reuse.tokens == 192
        assert tokens() == [257, 307, 0]
        engine.generate(random_prompt(20, 4), GREEDY)
        assert tokens() == [257, 307, 27]
        engine.generate(random_prompt(30, 5), GREEDY)  # nobody has it, and none is empty
        assert tokens() == [257, 37, 27]


def test_a_position_of_another_slot_is_taken_over(calls: list[list[int]]) -> None:
    """Several conversations with one long beginning compute it once."""
    with load(slots=3) as engine:
        shared = random_prompt(300)
        first = engine.generate([*shared, *range(8)], GREEDY)
        assert first.usage.cached_tokens == 0
        held = hold_back(engine)
        streams = [engine.stream([*shared, *random_prompt(20, i)], GREEDY) for i in (1, 2, 3)]
        held.let_go()
        results = [stream.result() for stream in streams]
        kinds = [(r.reuse.kind, r.reuse.tokens) for r in results]
        assert kinds == [("anchor", 300), ("branch", 300), ("branch", 300)]
        assert "slot 0 has kept the position 300" in results[1].reuse.reason
        for result in (first, *results):
            check_cold(engine, result, GREEDY)
        # Each goes on by itself.
        for result in results:
            longer = engine.generate([*result.prompt, *result.tokens, 7], GREEDY)
            assert longer.reuse.kind == "live"
            check_cold(engine, longer, GREEDY)


def test_a_session_takes_over_a_position_too() -> None:
    with load(slots=2) as engine, engine.session() as session:
        engine.generate(random_prompt(308), GREEDY)
        result = session.generate([*random_prompt(300), 5, 6], GREEDY)
        assert (result.reuse.kind, result.reuse.tokens) == ("branch", 300)
        check_cold(engine, result, GREEDY)


def test_a_session_has_its_slot_for_itself() -> None:
    with load(slots=2) as engine, engine.session() as session:
        held = session.generate(random_prompt(200), GREEDY)
        for seed in range(3):
            engine.generate(random_prompt(200, seed + 1), GREEDY)
        assert session.tokens == (*held.prompt, *held.tokens[:-1])


def test_more_sessions_than_slots_are_refused() -> None:
    with load(slots=2) as engine:
        sessions = [engine.session(), engine.session()]
        with pytest.raises(SlotError, match="of 2 slots 2 are held"):
            engine.session()
        with pytest.raises(SlotError, match="all 2 are held"):
            engine.generate([1], GREEDY)
        sessions[0].close()
        engine.generate([1], GREEDY)
        engine.session().close()


def test_more_requests_than_may_wait_are_refused() -> None:
    with load(slots=1, serving=Serving(max_waiting=2)) as engine:
        held = hold_back(engine)
        streams = [engine.stream([5, 6, i], GREEDY) for i in range(2)]
        with pytest.raises(SlotError, match="at most 2 requests may wait"):
            engine.stream([5], GREEDY)
        held.let_go()
        for stream in streams:
            check_cold(engine, stream.result(), GREEDY)
        engine.generate([5], GREEDY)


def test_an_idle_slot_gives_its_memory_to_one_that_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with load(slots=3) as engine:
        plan = engine.model.plan_cache(600)
        free = 2 * plan.n_bytes + 1000

        def available() -> int:
            used = sum(slot.capacity_tokens > 0 for slot in engine._slots)
            return free - used * plan.n_bytes

        monkeypatch.setattr("mlx_dsv4.cache.buffers.available_bytes", available)
        for seed in range(4):
            check_cold_later = engine.generate(random_prompt(50, seed), GREEDY)
        assert [slot.tokens > 0 for slot in engine.status().slots].count(True) == 2
        with engine.session() as a, engine.session() as b, engine.session() as c:
            a.generate([1], GREEDY)
            b.generate([1], GREEDY)
            with pytest.raises(AllocationError):  # the others are not idle: they are held
                c.generate([1], GREEDY)
        monkeypatch.undo()
        check_cold(engine, check_cold_later, GREEDY)


def test_status_says_what_is_there() -> None:
    with load(slots=2) as engine:
        engine.generate(random_prompt(200), GREEDY)
        with engine.session():
            status = engine.status()
        assert (status.running, status.waiting) == (0, 0)
        used, held = status.slots
        assert (used.tokens, used.capacity_tokens, used.anchors) == (207, 600, (192,))
        plan = engine.model.plan_cache(600)
        assert used.n_bytes == plan.n_bytes + plan.snapshot_bytes
        assert (held.tokens, held.held_by_session, held.n_bytes) == (0, True, 0)
        assert status.scratch_bytes >= 0


def test_a_failed_step_fails_those_in_it_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with load(slots=3) as engine:
        idle = engine.generate(random_prompt(200), GREEDY)
        held = hold_back(engine)
        streams = [engine.stream(random_prompt(50, i), GREEDY) for i in (1, 2)]
        forward = Model._forward
        monkeypatch.setattr(Model, "_forward", lambda *_: 1 / 0)
        held.let_go()
        for stream in streams:
            with pytest.raises(ZeroDivisionError):
                stream.result()
        monkeypatch.setattr(Model, "_forward", forward)
        longer = engine.generate([*idle.prompt, *idle.tokens, 5], GREEDY)
        assert longer.reuse.kind == "live"
        for i in (1, 2):
            check_cold(engine, engine.generate(random_prompt(50, i), GREEDY), GREEDY)


def test_the_log_has_numbers_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    secret = "my secret word"
    with load() as engine, caplog.at_level(logging.DEBUG, logger="mlx_dsv4"):
        engine.generate(secret, GREEDY)
        engine.chat([{"role": "user", "content": secret}], GREEDY)
    records = [r for r in caplog.records if hasattr(r, "prompt_tokens")]
    assert [r.reuse for r in records] == ["reset", "reset"]
    assert all(0 < r.generated_tokens <= 8 for r in records)
    assert "secret" not in caplog.text
    assert not any("secret" in str(vars(r)) for r in caplog.records)


def test_two_engines_in_one_process() -> None:
    with load() as one, load(tiny_model(seed=1).path, numerics="plain") as other:
        streams = [e.stream(random_prompt(50), GREEDY) for e in (one, other, one, other)]
        results: list[Result] = [stream.result() for stream in streams]
        for engine, result in zip((one, other, one, other), results, strict=True):
            check_cold(engine, result, GREEDY)
        assert results[0].tokens != results[1].tokens
