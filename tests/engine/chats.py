"""Answers with tokens of our choice, and the messages around them."""

import re
from collections.abc import Sequence
from typing import Any

from mlx_dsv4.engine import Result
from mlx_dsv4.engine.events import Usage
from mlx_dsv4.engine.output import ChatOutput
from mlx_dsv4.text import ChatEncoding, ChatPrompt, Tokenizer
from mlx_dsv4.text.tokenizer import BYTE_ALPHABET

TOOL = {
    "type": "function",
    "function": {"name": "run", "description": "Run it.", "parameters": {"type": "object"}},
}
MARKERS = re.compile("(<think>|</think>|｜DSML｜)")


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def calls_text(*commands: str) -> str:
    """Calls of TOOL as the model writes them."""
    invokes = "".join(
        f'<｜DSML｜invoke name="run">\n<｜DSML｜parameter name="cmd" string="true">{command}'
        f'</｜DSML｜parameter>\n<｜DSML｜parameter name="n" string="false">[1,2]'
        f"</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
        for command in commands
    )
    return f"<｜DSML｜tool_calls>\n{invokes}</｜DSML｜tool_calls>"


def odd_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """A text with a token for each byte, but for markers: not what it is encoded to."""
    tokens = []
    for part in MARKERS.split(text):
        if MARKERS.fullmatch(part):
            tokens.append(tokenizer.id_of(part))
        else:
            tokens += [tokenizer.id_of(BYTE_ALPHABET[byte]) for byte in part.encode()]
    return tokens


def answered(
    tokenizer: Tokenizer,
    messages: Sequence[Any],
    tokens: Sequence[int],
    *,
    cut: bool = False,
    **how: Any,
) -> tuple[Result, ChatPrompt]:
    """The result of some tokens, as if a model had drawn them; and their prompt."""
    prompt = ChatEncoding(tokenizer).render(messages, **how)
    output = ChatOutput(tokenizer.stream(control=False), prompt.parser())
    for token in tokens:
        list(output.push(token))
    ending = "length" if cut else "stop"
    list(output.finish(ending))
    result = Result(
        text=output.text,
        reasoning=output.reasoning,
        tool_calls=tuple(output.tool_calls),
        finish_reason=output.finish_reason(ending),
        prompt=tuple(prompt.ids),
        tokens=(*tokens, *([] if cut else [tokenizer.eos_id])),
        usage=Usage(len(prompt.ids), 0, len(tokens), 0.0, 0.0, 0.0, None),
        reuse=None,
    )
    return result, prompt
