"""One generation in its slot, step by step."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mlx_dsv4.engine.events import (
    Done,
    Progress,
    Reasoning,
    Result,
    Reuse,
    Text,
    ToolCallDelta,
    Usage,
)
from mlx_dsv4.engine.output import Ending, Output
from mlx_dsv4.engine.params import Params
from mlx_dsv4.engine.prefill import balanced_multiplier, slice_tokens
from mlx_dsv4.engine.reuse import anchor_positions
from mlx_dsv4.engine.sampling import Sampler
from mlx_dsv4.engine.slot import Slot
from mlx_dsv4.engine.stream import Mailbox

SECONDS_BETWEEN_PROGRESS = 0.1

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Request:
    """What is to be generated, before it has a slot.

    Attributes:
        number: In the order of arrival.
        prompt: Token ids.
        params: How to draw and stop.
        output: What tokens become.
        mailbox: Where events go.
        stop_ids: Tokens that end it.
        limit: Most tokens to generate.
        sampler: That draws them.
        anchors: Positions of the prompt that others may share.
        slot: The one it must run in; None takes any that no session holds.
        on_done: Called with the result before it is delivered.
        arrived: Seconds of the clock.
    """

    number: int
    prompt: list[int]
    params: Params
    output: Output
    mailbox: Mailbox
    stop_ids: frozenset[int]
    limit: int
    sampler: Sampler
    anchors: Sequence[int] = ()
    slot: Slot | None = None
    on_done: Callable[[Result], None] | None = None
    arrived: float = field(default_factory=time.perf_counter)

    @property
    def needed_tokens(self) -> int:
        """Positions that will be written, as far as that is known: the last token needs none."""
        limit = self.params.max_tokens
        return len(self.prompt) + (0 if limit is None else min(limit, self.limit) - 1)


class Run:
    """A request in a slot: what it reads next, and what becomes of what comes out.

    Args:
        request: To run.
        slot: Of its own; at the position where the prompt goes on.
        reuse: What is not computed.
        multiplier: Of chunks, see :func:`mlx_dsv4.engine.prefill.chunk_multiplier`.

    Attributes:
        ended: Whether the last event, or an error, has been delivered.
        complete: Whether it ended by itself, without an error.
    """

    def __init__(self, request: Request, slot: Slot, reuse: Reuse, multiplier: int) -> None:
        self.request = request
        self.slot = slot
        self.reuse = reuse
        self.ended = False
        self.complete = False
        self._sampler = request.sampler
        self._multiplier = multiplier
        if reuse.tokens == 0:
            self._multiplier = balanced_multiplier(len(request.prompt), multiplier)
        self._anchors = [
            at for at in anchor_positions(len(request.prompt), request.anchors) if at > reuse.tokens
        ]
        self._started = time.perf_counter()
        self._first_token = self._first_text = self._last_token = 0.0
        self._told = 0.0
        self._told_logprobs = 0
        self._progress(last=reuse.tokens == len(request.prompt))

    @property
    def prefilling(self) -> bool:
        """Whether some of the prompt has not been read."""
        return self.slot.position < len(self.request.prompt)

    @property
    def prompt_is_read(self) -> bool:
        """Whether the step that has been made read the last of the prompt."""
        return self.slot.position == len(self.request.prompt)

    @property
    def needs_step(self) -> bool:
        """Whether there is something to read; not when a whole prompt was reused."""
        return self.prefilling or bool(self._sampler.tokens)

    def next_tokens(self, most: int | None = None) -> list[int]:
        """What the next call reads: a slice of the prompt, or the token that was drawn.

        Args:
            most: Prompt tokens at a time while others wait for theirs.
        """
        if not self.prefilling:
            return [self._sampler.tokens[-1]]
        prompt, position = self.request.prompt, self.slot.position
        end = self._anchors[0] if self._anchors else len(prompt)
        size = slice_tokens(position, end - position, self._multiplier)
        return prompt[position : position + min(size, most or size)]

    def has_read(self, tokens: list[int]) -> None:
        """A call has read what :meth:`next_tokens` gave."""
        was_prefilling = len(self.slot.ledger) < len(self.request.prompt)
        self.slot.extend(tokens)
        if self._anchors and self.slot.position == self._anchors[0]:
            self.slot.anchor()
            self._anchors.pop(0)
        if was_prefilling:
            self._progress(last=not self.prefilling)

    def draw(self, logits: NDArray[np.float32]) -> None:
        """Take the logits after what was read; draw, and say what becomes of the token."""
        now = time.perf_counter()
        token = self._sampler.draw(logits)
        self.slot.logits = logits
        self._first_token = self._first_token or now
        self._last_token = time.perf_counter()
        if token in self.request.stop_ids:
            self.end("stop")
            return
        for event in self.request.output.push(token):
            self._tell(event)
        if self.request.output.stopped:
            self.end("stop")
        elif len(self._sampler.tokens) == self.request.limit:
            self.end("length")

    def end(self, ending: Ending) -> None:
        """Deliver what was held back, and the result."""
        self.ended = True
        for event in self.request.output.finish(ending):
            self._tell(event)
        result = self._result(ending)
        if self.request.on_done is not None:
            self.request.on_done(result)
        _log_result(self.request, self.slot, result)
        self.complete = ending != "cancelled"
        self.request.mailbox.put(Done(result))

    def fail(self, error: BaseException) -> None:
        """End with an error, which the reader gets."""
        self.ended = True
        _log.warning("request %d failed: %s", self.request.number, type(error).__name__)
        self.request.mailbox.put(error)

    def _tell(self, event: Text | Reasoning | ToolCallDelta) -> None:
        logprobs = tuple(self._sampler.logprobs[self._told_logprobs :])
        if isinstance(event, Text | Reasoning):
            self._told_logprobs += len(logprobs)
            event = replace(event, logprobs=logprobs)
        if isinstance(event, Text):
            self._first_text = self._first_text or time.perf_counter()
        self.request.mailbox.put(event)

    def _progress(self, *, last: bool) -> None:
        """Tell how far the prompt is, at most ten times a second, and at its end."""
        now = time.perf_counter()
        if not last and now - self._told < SECONDS_BETWEEN_PROGRESS:
            return
        self._told = now
        processed, seconds = self.slot.position, now - self._started
        computed = processed - self.reuse.tokens
        rate = computed / seconds if computed and seconds else 0.0
        total = len(self.request.prompt)
        self.request.mailbox.put(Progress(min(processed, total), total, rate, self.reuse))

    def _result(self, ending: Ending) -> Result:
        output = self.request.output
        return Result(
            text=output.text,
            reasoning=output.reasoning,
            tool_calls=tuple(output.tool_calls),
            finish_reason=output.finish_reason(ending),
            prompt=tuple(self.request.prompt),
            tokens=tuple(self._sampler.tokens),
            usage=self._usage(),
            reuse=self.reuse,
            logprobs=tuple(self._sampler.logprobs),
        )

    def _usage(self) -> Usage:
        arrived, first = self.request.arrived, self._first_token or time.perf_counter()
        return Usage(
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.reuse.tokens,
            generated_tokens=len(self._sampler.tokens),
            queue_seconds=self._started - arrived,
            prefill_seconds=first - self._started,
            decode_seconds=max(self._last_token - first, 0.0),
            first_text_seconds=self._first_text - arrived if self._first_text else None,
        )


def cancelled_before(request: Request) -> Result:
    """The result of a request that was cancelled while it waited."""
    waited = time.perf_counter() - request.arrived
    usage = Usage(len(request.prompt), 0, 0, waited, 0.0, 0.0, None)
    return Result("", "", (), "cancelled", tuple(request.prompt), (), usage, None)


def _log_result(request: Request, slot: Slot, result: Result) -> None:
    """One line per generation, and the same as fields; never any text."""
    usage, reuse = result.usage, result.reuse
    kind = reuse.kind if reuse else "none"
    _log.info(
        "request %d, slot %d: %d prompt tokens, %d cached (%s), %d generated, %s",
        request.number,
        slot.index,
        usage.prompt_tokens,
        usage.cached_tokens,
        kind,
        usage.generated_tokens,
        result.finish_reason,
        extra={
            "request": request.number,
            "slot": slot.index,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "reuse": kind,
            "generated_tokens": usage.generated_tokens,
            "prefill_seconds": usage.prefill_seconds,
            "decode_seconds": usage.decode_seconds,
            "finish_reason": result.finish_reason,
        },
    )
