"""What a generation of a soak must be: what the model alone makes of its prompt, from nothing."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlx_dsv4 import Params
from mlx_dsv4.engine import Result, Sampler
from mlx_dsv4.engine.sampling import TokenLogprob
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.model import Model, load_weights
from mlx_dsv4.text import Tokenizer
from soak_journal import Journal, Record


class Cold:
    """Generates without the engine: a cache for each prompt, one call, then token by token."""

    def __init__(self, path: Path) -> None:
        with GGUFFile(path) as file:
            self.model = Model(load_weights(file), numerics="official", device=mx.Device(mx.cpu, 0))
            self.tokenizer = Tokenizer.from_metadata(file.metadata)
        self._known: dict[tuple[tuple[int, ...], str], list[TokenLogprob]] = {}
        self.runs = 0

    def generate(self, prompt: tuple[int, ...], params: Params, n: int) -> list[TokenLogprob]:
        """``n`` tokens, whatever they are, with as many likeliest ones as were asked for."""
        known = self._known.setdefault((prompt, repr(replace(params, max_tokens=None))), [])
        if len(known) < n:
            known[:] = self._run(prompt, params, n)
        return known[:n]

    def forget(self) -> None:
        """Let go of what is known."""
        self._known = {}

    def _run(self, prompt: tuple[int, ...], params: Params, n: int) -> list[TokenLogprob]:
        self.runs += 1
        reported = replace(params, logprobs=params.logprobs or 0)
        sampler = Sampler(reported, self.model.config.vocab)
        cache = self.model.make_cache(len(prompt) + n)
        tokens: Sequence[int] = prompt
        for _ in range(n):
            state = self.model.last_token_state(self.model.prefill(tokens, cache))
            tokens = [sampler.draw(np.array(self.model.logits(state))[0])]
        return sampler.logprobs


class History:
    """All token sequences that caches may hold or have held."""

    def __init__(self) -> None:
        self._sequences: set[bytes] = set()

    def add(self, tokens: Sequence[int]) -> None:
        self._sequences.add(packed(tokens))

    def begins_with(self, tokens: Sequence[int]) -> bool:
        """Whether one of them does."""
        return any(sequence.startswith(packed(tokens)) for sequence in self._sequences)

    @property
    def n_bytes(self) -> int:
        return sum(map(sys.getsizeof, self._sequences))


def packed(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int16).tobytes()


def check_phase(journal: Journal, cold: Cold, history: History, context: int) -> None:
    """Check everything that has ended since the last call; failures go to the journal."""
    records, abandoned = journal.take()
    for prompt in abandoned:
        history.add(prompt)
    for record in records:
        for wrong in (*cold_mistakes(record, cold, context), *told_mistakes(record, cold)):
            journal.fail(f"{record.kind}: {wrong}; {describe(record.result)}")
        journal.alive()
    check_reuse(journal, records, history)
    cold.forget()


def cold_mistakes(record: Record, cold: Cold, context: int) -> list[str]:
    """How tokens, their log probabilities and the ending differ from those of a cold run."""
    result, params = record.result, record.params
    tokens = result.tokens
    expected = cold.generate(result.prompt, params, len(tokens))
    wrong = []
    if list(tokens) != [item.token for item in expected]:
        wrong.append(f"a cold run gives {[item.token for item in expected]}, not {list(tokens)}")
    if params.logprobs is not None and list(result.logprobs) != expected:
        wrong.append(f"a cold run has other log probabilities than {result.logprobs}")
    room = context - len(result.prompt) + 1
    limit = room if params.max_tokens is None else min(params.max_tokens, room)
    stopped = bool(tokens) and (
        tokens[-1] in cold.tokenizer.stop_ids or tokens[-1] in params.stop_ids
    )
    ended = {
        "cancelled": len(tokens) <= limit,
        "length": len(tokens) == limit,
        "stop": stopped or bool(params.stop),
        "tool_calls": record.chat and stopped,
    }
    if not ended[result.finish_reason]:
        wrong.append(f"it may not end with {result.finish_reason!r}")
    return wrong


def told_mistakes(record: Record, cold: Cold) -> list[str]:
    """How text and events differ from what the tokens spell."""
    result, wrong = record.result, []
    if record.text is not None and record.text != result.text:
        wrong.append(f"the events have the text {record.text!r}, the result {result.text!r}")
    if not record.chat:
        tokens, stop_ids = list(result.tokens), {*cold.tokenizer.stop_ids, *record.params.stop_ids}
        if tokens and tokens[-1] in stop_ids:
            tokens.pop()
        text = cold.tokenizer.decode(tokens, control=False)
        cut = min((text.find(s) for s in record.params.stop if s in text), default=len(text))
        if result.text != text[:cut]:
            wrong.append(f"the tokens spell {text[:cut]!r}, not {result.text!r}")
    return wrong


def check_reuse(journal: Journal, records: list[Record], history: History) -> None:
    """What was reused must have been read by another request, before this one had ended."""
    sequences = [packed(r.result.prompt + r.result.tokens) for r in records]
    for record in records:
        journal.count("checks", "generations")
        journal.count("tokens", "of prompts", len(record.result.prompt))
        journal.count("tokens", "generated", len(record.result.tokens))
        reuse = record.result.reuse
        if reuse is None:
            continue
        journal.count("reuse", reuse.kind)
        journal.count("tokens", "cached", reuse.tokens)
        if (reuse.kind == "reset") != (reuse.tokens == 0):
            journal.fail(f"{record.kind}: {reuse} contradicts itself")
        reused = record.result.prompt[: reuse.tokens]
        beside = (
            sequence
            for other, sequence in zip(records, sequences, strict=True)
            if other is not record and other.started < record.ended
        )
        if not any(s.startswith(packed(reused)) for s in beside) and not history.begins_with(
            reused
        ):
            journal.fail(f"{record.kind}: {reuse} of tokens that nobody has read")
    for record in records:
        history.add(record.result.prompt + record.result.tokens)


def describe(result: Result) -> str:
    return f"{len(result.prompt)} prompt tokens, {result.reuse}, {result.finish_reason}"
