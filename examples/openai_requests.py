"""OpenAI's JSON to the engine's arguments.

Nothing here knows about HTTP: `openai_server.py` does.
"""

import json
from typing import Any

from mlx_dsv4 import Params
from mlx_dsv4.errors import ParamsError

Json = dict[str, Any]

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
# OpenAI's, who refuse the rest; the engine's are wider.
RANGES = {"temperature": (0, 2), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)}
# OpenAI's and DeepSeek's words; the engine knows three. DeepSeek reads "medium" as "high".
EFFORTS = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "high",
    "max": "max",
}
# What may be asked for of fields that would change the answer and are not supported.
CHAT_ACCEPTS: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "functions": (),
    "function_call": (),
    "parallel_tool_calls": (True,),
    "web_search_options": (),
}
COMPLETION_ACCEPTS: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for completions
MOST_SPELLED = 200  # characters of a value in an error


class RequestError(Exception):
    """A request that is refused before the engine sees it.

    Args:
        message: Names the field, what was expected and what came.
        param: The field.
        status: Of HTTP.
        code: OpenAI's word for what is wrong, where clients look for it.
    """

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


def spelled(value: object) -> str:
    """A value as JSON has it, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "a value that is nested too deeply"
    # Lone surrogates cannot be sent as they are.
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= MOST_SPELLED else f"{text[:MOST_SPELLED]}..."


def what_came(body: Json, name: str) -> str:
    """How an error says what a field is, or that there is none."""
    return f"got {spelled(body[name])}" if name in body else "it is missing"


def read_field(body: Json, name: str, kind: type, default: Any = None) -> Any:
    """A field of one JSON type; ``default`` where it is absent or null."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words = {bool: "true or false", int: "an integer", str: "a string", list: "an array"}
        raise RequestError(
            f"{name} must be {words.get(kind, 'an object')}; got {spelled(value)}", name
        )
    return value


def refuse_unsupported(body: Json, accepts: dict[str, tuple[object, ...]]) -> None:
    """Refuse fields whose value would change the answer if anybody heeded it."""
    for name, values in accepts.items():
        value = body.get(name)
        if value is not None and value not in values:
            only = " or ".join(map(spelled, values)) or "left out"
            raise RequestError(
                f"{name} is not supported: it must be {only}; got {spelled(value)}", name
            )


def read_params(body: Json, **named: tuple[str, Any]) -> Params:
    """How tokens are drawn.

    Args:
        body: Of the request; its fields of ``SAMPLING`` have the engine's names.
        named: By the engine's name, a field of another name or default, and its value.

    Raises:
        RequestError: a value is of the wrong type or out of its range.
    """
    for name, (least, most) in RANGES.items():
        check_range(body, name, least, most)
    named |= {name: (name, body[name]) for name in SAMPLING if body.get(name) is not None}
    named["logit_bias"] = ("logit_bias", read_logit_bias(body))
    for name, (field, value) in named.items():
        check_param(name, field, value)
    return Params(**{name: value for name, (_, value) in named.items()})


def check_range(body: Json, name: str, least: float, most: float) -> None:
    """Refuse a number that OpenAI refuses."""
    value = body.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and least <= value <= most):
        rule = f"must be a number in {least}..{most}"
        raise RequestError(f"{name} {rule}; got {spelled(value)}", name)


def check_param(name: str, field: str, value: Any) -> None:
    """Refuse what the engine refuses, alone, so that the error names the field that was sent."""
    try:
        Params(**{name: value})
    except ParamsError as error:
        rule = str(error).partition("; got ")[0].replace(name, field, 1)
        raise RequestError(f"{rule}; got {spelled(value)}", field) from None


def read_logit_bias(body: Json) -> dict[int, Any]:
    bias = read_field(body, "logit_bias", dict, {})
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        raise RequestError(
            f"logit_bias must be an object whose keys are token ids; got {spelled(bias)}",
            "logit_bias",
        ) from None


def read_chat(body: Json) -> Json:
    """The arguments of ``engine.stream_chat``.

    Raises:
        RequestError: a field is not what it must be.
    """
    refuse_unsupported(body, CHAT_ACCEPTS)
    messages = read_field(body, "messages", list)
    if messages is None:
        raise RequestError(f"messages must be an array; {what_came(body, 'messages')}", "messages")
    thinking, effort = read_thinking(body)
    limit = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    return {
        "messages": messages,
        "params": read_params(
            body,
            max_tokens=(limit, body.get(limit)),
            logprobs=("top_logprobs", read_chat_logprobs(body)),
        ),
        "thinking": thinking,
        "effort": effort,
        **read_tools(body),
    }


def read_thinking(body: Json) -> tuple[bool, str | None]:
    """Whether to reason first, and how much; "none" or "disabled" turn it off."""
    mode = read_field(body, "thinking", dict, {}).get("type", "enabled")
    if mode not in ("enabled", "disabled"):
        raise RequestError(
            f"thinking.type must be enabled or disabled; got {spelled(mode)}", "thinking"
        )
    effort = read_field(body, "reasoning_effort", str)
    if effort is None:
        return mode == "enabled", None
    if effort not in EFFORTS:
        raise RequestError(
            f"reasoning_effort must be one of {', '.join(EFFORTS)}; got {spelled(effort)}",
            "reasoning_effort",
        )
    return mode == "enabled" and effort != "none", EFFORTS[effort]


def read_tools(body: Json) -> Json:
    """The tools and the choice; a named function is a choice of one tool that is required."""
    tools = read_field(body, "tools", list, [])
    if not all(isinstance(tool, dict) for tool in tools):
        raise RequestError(f"tools must be an array of objects; got {spelled(tools)}", "tools")
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        tools = [tool for tool in tools if tool.get("function") and named(tool) == named(choice)]
        if not tools:
            raise RequestError(
                f"tool_choice must name one of tools; got {spelled(choice)}", "tool_choice"
            )
        choice = "required"
    if choice not in (None, "none", "auto", "required"):
        raise RequestError(
            f"tool_choice must be none, auto, required or a function; got {spelled(choice)}",
            "tool_choice",
        )
    return {"tools": tools, "tool_choice": choice or "auto"}


def named(tool: Json) -> object:
    """The name of the function of a tool, or of a choice of one."""
    return read_field(tool, "function", dict, {}).get("name")


def read_chat_logprobs(body: Json) -> int | None:
    """How many of the likeliest tokens to report; None where nothing is asked for."""
    wanted = read_field(body, "logprobs", bool, False)
    n_top = read_field(body, "top_logprobs", int)
    if n_top is not None and not wanted:
        raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
    return (n_top or 0) if wanted else None


def read_completion(body: Json) -> Json:
    """The arguments of ``engine.stream``.

    Raises:
        RequestError: a field is not what it must be.
    """
    refuse_unsupported(body, COMPLETION_ACCEPTS)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if not isinstance(prompt, str | list):
        rule = "prompt must be a string or an array of token ids"
        raise RequestError(f"{rule}; {what_came(body, 'prompt')}", "prompt")
    if isinstance(prompt, list) and any(isinstance(part, str | list) for part in prompt):
        raise RequestError(f"prompt must be one prompt; got {len(prompt)}", "prompt")
    max_tokens = body.get("max_tokens")
    return {
        "prompt": prompt,
        "params": read_params(
            body,
            max_tokens=("max_tokens", COMPLETION_MAX_TOKENS if max_tokens is None else max_tokens),
            logprobs=("logprobs", read_field(body, "logprobs", int)),
        ),
    }
