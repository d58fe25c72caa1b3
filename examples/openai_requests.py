"""OpenAI's JSON to the engine's arguments.

Nothing here knows about HTTP: `openai_server.py` does.
"""

from typing import Any

from mlx_dsv4 import Params

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


class RequestError(Exception):
    """A request that is refused before the engine sees it.

    Args:
        message: Names the field, what was expected and what came.
        param: The field.
        status: Of HTTP.
    """

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


def read_field(body: Json, name: str, kind: type, default: Any = None) -> Any:
    """A field of one JSON type; ``default`` where it is absent or null."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words = {bool: "true or false", int: "an integer", str: "a string", list: "an array"}
        raise RequestError(f"{name} must be {words.get(kind, 'an object')}; got {value!r}", name)
    return value


def refuse_unsupported(body: Json, accepts: dict[str, tuple[object, ...]]) -> None:
    """Refuse fields whose value would change the answer if anybody heeded it."""
    for name, values in accepts.items():
        value = body.get(name)
        if value is not None and value not in values:
            only = " or ".join(map(repr, values)) or "left out"
            raise RequestError(f"{name} is not supported: it must be {only}; got {value!r}", name)


def read_params(body: Json, max_tokens: int | None, logprobs: int | None) -> Params:
    """How tokens are drawn.

    Raises:
        ParamsError, RequestError: a value is of the wrong type or out of its range.
    """
    given = {name: body[name] for name in SAMPLING if body.get(name) is not None}
    bias = read_field(body, "logit_bias", dict, {})
    try:
        given["logit_bias"] = {int(token): value for token, value in bias.items()}
    except ValueError:
        raise RequestError(
            f"logit_bias must be an object whose keys are token ids; got {list(bias)!r}",
            "logit_bias",
        ) from None
    return Params(max_tokens=max_tokens, logprobs=logprobs, **given)


def read_chat(body: Json) -> Json:
    """The arguments of ``engine.stream_chat``.

    Raises:
        ParamsError, RequestError: a field is not what it must be.
    """
    refuse_unsupported(body, CHAT_ACCEPTS)
    messages = read_field(body, "messages", list)
    if messages is None:
        raise RequestError("messages must be an array; it is missing", "messages")
    thinking, effort = read_thinking(body)
    max_tokens = body.get("max_completion_tokens")
    return {
        "messages": messages,
        "params": read_params(
            body,
            body.get("max_tokens") if max_tokens is None else max_tokens,
            read_chat_logprobs(body),
        ),
        "thinking": thinking,
        "effort": effort,
        **read_tools(body),
    }


def read_thinking(body: Json) -> tuple[bool, str | None]:
    """Whether to reason first, and how much; "none" or "disabled" turn it off."""
    mode = read_field(body, "thinking", dict, {}).get("type", "enabled")
    if mode not in ("enabled", "disabled"):
        raise RequestError(f"thinking.type must be enabled or disabled; got {mode!r}", "thinking")
    effort = read_field(body, "reasoning_effort", str)
    if effort is None:
        return mode == "enabled", None
    if effort not in EFFORTS:
        raise RequestError(
            f"reasoning_effort must be one of {', '.join(EFFORTS)}; got {effort!r}",
            "reasoning_effort",
        )
    return mode == "enabled" and effort != "none", EFFORTS[effort]


def read_tools(body: Json) -> Json:
    """The tools and the choice; a named function is a choice of one tool that is required."""
    tools = read_field(body, "tools", list, [])
    if not all(isinstance(tool, dict) for tool in tools):
        raise RequestError(f"tools must be an array of objects; got {tools!r}", "tools")
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        tools = [tool for tool in tools if tool.get("function") and named(tool) == named(choice)]
        if not tools:
            raise RequestError(f"tool_choice must name one of tools; got {choice!r}", "tool_choice")
        choice = "required"
    if choice not in (None, "none", "auto", "required"):
        raise RequestError(
            f"tool_choice must be none, auto, required or a function; got {choice!r}",
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
        ParamsError, RequestError: a field is not what it must be.
    """
    refuse_unsupported(body, COMPLETION_ACCEPTS)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if not isinstance(prompt, str | list):
        raise RequestError("prompt must be a string or an array of token ids", "prompt")
    if isinstance(prompt, list) and any(isinstance(part, str | list) for part in prompt):
        raise RequestError(f"prompt must be one prompt; got {len(prompt)}", "prompt")
    max_tokens = body.get("max_tokens")
    return {
        "prompt": prompt,
        "params": read_params(
            body,
            COMPLETION_MAX_TOKENS if max_tokens is None else max_tokens,
            read_field(body, "logprobs", int),
        ),
    }
