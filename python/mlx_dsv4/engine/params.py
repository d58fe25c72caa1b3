"""What a caller asks of one generation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from numpy.typing import ArrayLike

from mlx_dsv4.errors import ParamsError

MOST_LOGPROBS = 20
LARGEST = 1e30  # of numbers that meet logits: sums stay finite
NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)

# Of the tokens generated so far: which may come next, ``[vocab]`` bool; None where all may.
AllowedTokens = Callable[[Sequence[int]], ArrayLike | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """How tokens are drawn, and when to stop. Steps apply in the order of the numbers.

    Args:
        max_tokens: Most tokens to generate; None: until the context is full.
        stop: Strings that end the text; they and what follows are left out.
        stop_ids: Tokens that end the text, besides the model's own.
        logit_bias: (1) Added to the logits of these tokens.
        allowed_tokens: (2) Called before each draw with the tokens generated so far; the others
            get no probability. For grammars. It runs between steps of all sessions: be quick.
        repetition_penalty: (3) Logits of generated tokens are divided by it if above zero,
            multiplied below; 1 changes nothing.
        frequency_penalty: (4) Taken from a token's logit for each time it was generated.
        presence_penalty: (5) Taken from the logit of each generated token once.
        temperature: (9) Divides the logits before the draw; below 1e-5 the largest logit of
            step 5 wins, the lowest id on ties.
        top_k: (6) Keep the k most likely tokens; 0 keeps all.
        top_p: (7) Keep the most likely tokens up to and including the one at which their
            probabilities reach ``top_p``.
        min_p: (8) Keep tokens at least ``min_p`` times as likely as the most likely one.
        seed: Of the draws; None takes fresh entropy.
        logprobs: How many of the likeliest tokens to report beside each generated one, 0 to 20,
            by their log probability before any of these steps; None reports nothing.

    Raises:
        ParamsError: a value is out of its range or of the wrong type; names it.
    """

    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_tokens: AllowedTokens | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self._set("stop", (self.stop,))
        _integer("max_tokens", self.max_tokens, 1, None)
        _integer("top_k", self.top_k, 0)
        _integer("seed", self.seed, 0, None)
        _integer("logprobs", self.logprobs, 0, None, most=MOST_LOGPROBS)
        _number("temperature", self.temperature, 0, LARGEST)
        _number("min_p", self.min_p, 0, 1)
        _number("top_p", self.top_p, 0, 1, above=True)
        _number("repetition_penalty", self.repetition_penalty, 0, LARGEST, above=True)
        for name in ("frequency_penalty", "presence_penalty"):
            _number(name, getattr(self, name), -LARGEST, LARGEST)
        if self.allowed_tokens is not None and not callable(self.allowed_tokens):
            raise _wrong(
                "allowed_tokens", "a function of the generated tokens", self.allowed_tokens
            )
        _check_stops(self.stop, self.stop_ids)
        _check_bias(self.logit_bias)
        self._own()

    def _own(self) -> None:
        """Copies that no caller changes, of plain numbers: others overflow, or meet no array."""
        for name in ("max_tokens", "top_k", "seed", "logprobs"):
            value = getattr(self, name)
            self._set(name, None if value is None else int(value))
        for name in NUMBERS:
            self._set(name, float(getattr(self, name)))
        self._set("stop", tuple(self.stop))
        self._set("stop_ids", tuple(map(int, self.stop_ids)))
        self._set("logit_bias", {int(t): float(bias) for t, bias in self.logit_bias.items()})

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _check_stops(stop: object, stop_ids: object) -> None:
    if not isinstance(stop, Sequence) or not all(isinstance(s, str) and s for s in stop):
        raise _wrong("stop", "strings of at least one character", stop)
    if any("\ud800" <= character <= "\udfff" for s in stop for character in s):
        raise _wrong("stop", "valid Unicode, without lone surrogates", stop)
    if not isinstance(stop_ids, Sequence):
        raise _wrong("stop_ids", "a sequence of token ids", stop_ids)
    for token in stop_ids:
        _integer("stop_ids", token, 0)


def _check_bias(logit_bias: object) -> None:
    if not isinstance(logit_bias, Mapping):
        raise _wrong("logit_bias", "a mapping of token ids to numbers", logit_bias)
    for token, bias in logit_bias.items():
        _integer("a token of logit_bias", token, 0)
        _number(f"logit_bias[{token}]", bias, -LARGEST, LARGEST)


def _integer(name: str, value: object, least: int, *none: None, most: int | None = None) -> None:
    """Refuse what is no integer in its range; None passes if it is among the arguments."""
    if value is None and none:
        return
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not least <= int(value) <= (int(value) if most is None else most):  # type: ignore[call-overload]
        rule = f"an integer >= {least}" if most is None else f"an integer in {least}..{most}"
        raise _wrong(name, rule, value)


def _number(name: str, value: object, least: float, most: float, *, above: bool = False) -> None:
    real = isinstance(value, Real) and not isinstance(value, bool)
    # As it is: not every integer fits a float.
    number: Any = value if real else float("nan")
    if not (least < number if above else least <= number) or not number <= most:
        low = f"above {least:g}" if above else f">= {least:g}"
        raise _wrong(name, f"a number {low} and <= {most:g}", value)


def _wrong(name: str, rule: str, value: object) -> ParamsError:
    return ParamsError(f"{name} must be {rule}; got {value!r}")
