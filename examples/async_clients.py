"""Several streams of one engine, read at once by one event loop.

python examples/async_clients.py model.gguf "The first" "Once upon a time" "def f(x):"
"""

import asyncio
import sys

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Result, Text


async def follow(engine: Engine, name: int, prompt: str) -> Result:
    """Print the pieces of one answer as they arrive, between those of the others."""
    stream = engine.stream(prompt, Params(max_tokens=32, temperature=0))
    async for event in stream:
        if isinstance(event, Text):
            print(f"[{name}] {event.text!r}", flush=True)
    return await stream.wait()


async def answer_all(engine: Engine, prompts: list[str]) -> list[Result]:
    """All at once: each step of the model reads one token for everybody."""
    return await asyncio.gather(*(follow(engine, i, prompt) for i, prompt in enumerate(prompts)))


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit("usage: python examples/async_clients.py MODEL.gguf PROMPT...")
    path, *prompts = sys.argv[1:]
    with Engine.load(path, context=4096) as engine:
        for i, result in enumerate(asyncio.run(answer_all(engine, prompts))):
            usage = result.usage
            print(
                f"[{i}] {result.finish_reason}: {usage.generated_tokens} tokens, "
                f"{usage.decode_rate:.1f} tokens/s"
            )


if __name__ == "__main__":
    main()
