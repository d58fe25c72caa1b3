"""The thread that runs a model for all sessions: one step after the other, each for everybody."""

import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Condition, Thread, current_thread
from typing import TypeVar

import mlx.core as mx
import numpy as np

from mlx_dsv4.engine.errands import Errand, give_up, result_of, settle
from mlx_dsv4.engine.events import Done
from mlx_dsv4.engine.prefill import chunk_multiplier
from mlx_dsv4.engine.run import Request, Run, cancelled_before
from mlx_dsv4.engine.slot import Slot
from mlx_dsv4.engine.slots import Slots
from mlx_dsv4.errors import ClosedError, SlotError, ThreadError
from mlx_dsv4.model import Model

T = TypeVar("T")

DECODE_SCRATCH_BYTES = 256 * 2**20

_log = logging.getLogger(__name__)


class Scheduler:
    """Runs requests until it is closed. A step reads one token for each session that decodes, and
    at times a slice of one prompt.

    While sessions decode, a prompt is read in slices of ``slice_tokens``, and
    ``decode_quantum`` steps without one follow each. Prompts that are read at the same time take
    turns. Requests wait in the order of their arrival; one whose slot is taken lets those pass
    that can run.

    Args:
        model: To run.
        slots: Of its sessions.
        weight_bytes: Of the model, which chunks depend on.
        chunk: Tokens of a chunk in units of 128; None: by the rule.
        slice_tokens: Most prompt tokens in a step while sessions decode.
        decode_quantum: Steps without prompt tokens after one with them, while sessions decode.
        max_waiting: Most requests that wait.
    """

    def __init__(
        self,
        model: Model,
        slots: Slots,
        *,
        weight_bytes: int,
        chunk: int | None,
        slice_tokens: int,
        decode_quantum: int,
        max_waiting: int,
    ) -> None:
        self._model = model
        self._slots = slots
        self._weight_bytes = weight_bytes
        self._chunk = chunk
        self._slice_tokens = slice_tokens
        self._decode_quantum = decode_quantum
        self._max_waiting = max_waiting
        self._process = os.getpid()
        self._changed = Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._waiting: deque[Request | Errand] = deque()
        self._runs: list[Run] = []
        self._since_slice = decode_quantum
        self._unsaved = False
        self._closing = False
        self._woken = False
        self._thread: Thread | None = None

    @property
    def closed(self) -> bool:
        return self._closing

    def counts(self) -> tuple[int, int]:
        """How many requests run, and how many wait."""
        with self._changed:
            return len(self._runs), len(self._waiting)

    def submit(self, request: Request) -> None:
        """Let a request wait for its slot.

        Raises:
            ClosedError: the engine has been closed.
            SlotError: as many requests wait as may; or no slot will be free for it.
            ThreadError: as :meth:`call`.
        """
        self._check_thread()
        with self._changed:
            self._check_open()
            if request.slot is None:
                self._slots.check_free()
            if len(self._waiting) >= self._max_waiting:
                raise SlotError(
                    f"at most {self._max_waiting} requests may wait; there are as many: "
                    f"try again later"
                )
            request.mailbox.on_cancel = self.wake
            self._wait_for_slot(request)
        self.wake()

    def hold(self) -> Slot:
        """An empty slot for a session alone, once those that wait have got theirs. For
        :meth:`call`.

        Raises:
            SlotError: each is held by a session, busy, or needed by a request that waits.
        """
        while True:
            self._admit()
            with self._changed:
                waits = any(
                    isinstance(request, Request) and request.slot is None
                    for request in self._waiting
                )
                # One that has come since it was looked at was promised a slot.
                if not waits or not self._slots.idle():
                    slot = self._slots.hold()
                    break
        self._slots.keep(slot)
        slot.clear()
        return slot

    def call(self, function: Callable[[], T]) -> T:
        """Run a function between two steps, in the thread of the model; its result.

        Raises:
            ClosedError: the engine has been closed.
            ThreadError: called by that thread, or in a process forked from the one that has it.
        """
        self._check_thread()
        future: Future[T] = Future()
        with self._changed:
            self._check_open()
            self._calls.append(lambda: settle(future, function))
            self._start()
            self._changed.notify()
        return result_of(future)

    def call_in(self, slot: Slot, function: Callable[[], None]) -> None:
        """Run a function on a slot, after the requests for it that arrived before; wait for it.

        Raises:
            ClosedError, ThreadError: as :meth:`call`.
        """
        self._check_thread()
        future: Future[None] = Future()
        errand = Errand(
            slot, lambda: settle(future, function), lambda error: give_up(future, error)
        )
        with self._changed:
            self._check_open()
            self._wait_for_slot(errand)
        self.wake()
        result_of(future)

    def wake(self) -> None:
        """Look again at who waits: a slot may have become free."""
        if self._forked:
            return
        with self._changed:
            self._woken = True
            self._changed.notify()

    def close(self) -> None:
        """End what runs and waits with ClosedError, and keep what the slots hold."""
        if self._forked:
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        # Whoever drops the last reference to an engine may be that very thread.
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def _check_thread(self) -> None:
        """Refuse who would wait for nobody."""
        if self._thread is current_thread():
            raise ThreadError(
                f"{self._model.config.name} must be used by other threads than its own, which "
                f"runs allowed_tokens: the call would wait for itself"
            )
        if self._forked:
            raise ThreadError(
                f"{self._model.config.name} must be used by the process that loaded it, "
                f"{self._process}; it was used by {os.getpid()}, which was forked from it"
            )

    @property
    def _forked(self) -> bool:
        """Whether the thread, and whoever had a lock, have been left in another process."""
        return os.getpid() != self._process

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError(self._closed_message)

    @property
    def _closed_message(self) -> str:
        return f"{self._model.config.name} must be open; it has been closed"

    def _start(self) -> None:
        if self._thread is None:
            # Nothing of it is needed when the program ends: files are complete or not there.
            self._thread = Thread(target=self._loop, name="mlx-dsv4 model", daemon=True)
            self._thread.start()

    def _wait_for_slot(self, request: Request | Errand) -> None:
        self._waiting.append(request)
        if request.slot is not None:
            request.slot.awaited += 1
        self._start()

    def _loop(self) -> None:
        while self._wait():
            try:
                self._turn()
            except BaseException as error:
                # Those who wait must hear of it, whatever it is.
                _log.exception("the engine failed")
                self._end_all(error)
        self._end_all(ClosedError(self._closed_message))
        for slot in self._slots:
            self._slots.keep(slot)

    def _turn(self) -> None:
        self._drop_cancelled()
        self._admit()
        self._run_calls()
        if self._runs:
            self._step()
        elif self._unsaved and not self._woken and not self._calls:
            self._unsaved = False
            for slot in self._slots:
                self._slots.keep(slot)

    def _wait(self) -> bool:
        """Until there is something to do; False once it is closed."""
        with self._changed:
            # Who waits is looked at when something has changed, not over and over.
            while not (self._closing or self._woken or self._calls or self._runs or self._unsaved):
                self._changed.wait()
            self._woken = False
            return not self._closing

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _drop_cancelled(self) -> None:
        for request in self._waiting_now():
            if isinstance(request, Request) and request.mailbox.cancelled:
                self._stop_waiting(request)
                request.mailbox.put(Done(cancelled_before(request)))
        for run in self._runs:
            if run.request.mailbox.cancelled:
                self._guard(run, lambda run=run: run.end("cancelled"))  # type: ignore[misc]
        self._leave()

    def _admit(self) -> None:
        """Give slots to those that wait, in their order."""
        for request in self._waiting_now():
            if isinstance(request, Errand):
                if not request.slot.busy:
                    self._stop_waiting(request)
                    request.work()
                continue
            slot = request.slot or self._slots.choose(request.prompt)
            if slot is None or slot.busy:
                continue
            self._stop_waiting(request)
            try:
                self._begin(request, slot)
            except Exception as error:
                request.mailbox.put(error)
        self._leave()

    def _begin(self, request: Request, slot: Slot) -> None:
        reuse = self._slots.begin(slot, request.prompt, request.needed_tokens)
        multiplier = chunk_multiplier(self._weight_bytes, slot.capacity_tokens, setting=self._chunk)
        run = Run(request, slot, reuse, multiplier)
        slot.busy = True
        self._runs.append(run)
        if not run.needs_step:
            logits = slot.logits
            assert logits is not None
            self._guard(run, lambda: run.draw(logits))

    def _waiting_now(self) -> list[Request | Errand]:
        with self._changed:
            return list(self._waiting)

    def _stop_waiting(self, request: Request | Errand) -> None:
        with self._changed:
            self._waiting.remove(request)
            if request.slot is not None:
                request.slot.awaited -= 1

    def _step(self) -> None:
        """One call of the model for all runs that take part, and what comes of it."""
        calls = self._next_calls()
        try:
            for run, tokens in calls:
                run.slot.grow(run.slot.position + len(tokens))
        except Exception as error:
            run.fail(error)
            self._leave()
            return
        caches = [run.slot.cache for run, _ in calls]
        try:
            states = self._model.advance(
                [(tokens, cache) for (_, tokens), cache in zip(calls, caches, strict=True) if cache]
            )
            for run, tokens in calls:
                run.has_read(tokens)
            if calls[-1][0].prompt_is_read:
                release_scratch(DECODE_SCRATCH_BYTES)
            self._draw([(run, s) for (run, _), s in zip(calls, states, strict=True)])
        except Exception as error:
            _log.exception("a step of %d sessions failed", len(calls))
            for run, _ in calls:
                run.fail(error)
        self._leave()

    def _next_calls(self) -> list[tuple[Run, list[int]]]:
        """Who reads what: every session that decodes one token, and one prompt a slice."""
        decoding = [run for run in self._runs if not run.prefilling]
        reading = [run for run in self._runs if run.prefilling]
        calls = [(run, run.next_tokens()) for run in decoding]
        if reading and (not decoding or self._since_slice >= self._decode_quantum):
            # The others come first next time.
            run = reading[0]
            self._runs.remove(run)
            self._runs.append(run)
            shared = bool(decoding) or len(reading) > 1
            calls.append((run, run.next_tokens(self._slice_tokens if shared else None)))
            self._since_slice = 0
        else:
            self._since_slice += 1
        return calls

    def _draw(self, states: list[tuple[Run, mx.array]]) -> None:
        """Logits of the runs whose prompt is read, and their next tokens."""
        drawing = [(run, state) for run, state in states if not run.prefilling]
        if not drawing:
            return
        last = [self._model.last_token_state(state) for _, state in drawing]
        joined = last[0] if len(last) == 1 else mx.concatenate(last)
        logits = np.array(self._model.logits(joined))
        for (run, _), row in zip(drawing, logits, strict=True):
            self._guard(run, lambda run=run, row=row: run.draw(row))  # type: ignore[misc]

    def _guard(self, run: Run, work: Callable[[], None]) -> None:
        """What goes wrong in one run stays there: a hook that raises, logits that are NaN."""
        try:
            work()
        except BaseException as error:
            run.fail(error)

    def _leave(self) -> None:
        """Give the slots of those that have ended back."""
        ended = [run for run in self._runs if run.ended]
        if not ended:
            return
        self._runs = [run for run in self._runs if not run.ended]
        for run in ended:
            run.slot.busy = False
        self._unsaved = self._woken = True
        if not all(run.complete for run in ended):
            release_scratch(0)

    def _end_all(self, error: BaseException) -> None:
        """Tell everybody who runs or waits; who has heard of it may come back meanwhile."""
        waiting = self._waiting_now()
        for run in self._runs:
            run.fail(error)
        self._leave()
        for request in waiting:
            self._stop_waiting(request)
            if isinstance(request, Errand):
                request.cancel(error)
            else:
                request.mailbox.put(error)
        self._run_calls()


def release_scratch(kept_bytes: int) -> None:
    """Give back what MLX keeps of freed arrays, if it is more than may be kept."""
    if mx.get_cache_memory() > kept_bytes:
        mx.clear_cache()
