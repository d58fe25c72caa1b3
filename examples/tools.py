"""A loop in which the model may call a tool, gets its result, and goes on until it answers.

python examples/tools.py model.gguf "What is 1234 times 5678?"
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Session, ToolCall

MOST_TURNS = 8
MULTIPLY = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two integers exactly.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
TOOLS: dict[str, Callable[..., object]] = {"multiply": lambda a, b: a * b}


def result_of(call: ToolCall) -> str:
    """What a tool says. The model wrote the arguments: they may be anything."""
    try:
        return json.dumps(TOOLS[call.name](**json.loads(call.arguments)))
    except (KeyError, TypeError, ValueError) as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def answer(session: Session, question: str, params: Params) -> list[dict[str, Any]]:
    """The whole conversation; its last message is the answer.

    Each turn sends all messages again, of which the session computes the last ones alone.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    for _ in range(MOST_TURNS):
        result = session.chat(messages, params, tools=[MULTIPLY], thinking=False)
        messages.append(result.message)
        if not result.tool_calls:
            break
        for call in result.tool_calls:
            said = result_of(call)
            print(f"{call.name}({call.arguments}) = {said}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    return messages


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/tools.py MODEL.gguf QUESTION")
    path, question = sys.argv[1:]
    with Engine.load(path, context=4096) as engine, engine.session() as session:
        messages = answer(session, question, Params(max_tokens=256, temperature=0))
        print(messages[-1]["content"])


if __name__ == "__main__":
    main()
