"""Load a DeepSeek-V4 GGUF file and stream a greedy continuation.

python examples/generate.py model.gguf "def attention(query, rows):"
"""

import sys

from mlx_dsv4 import Engine, Params
from mlx_dsv4.engine import Done, Text


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/generate.py MODEL.gguf PROMPT")
    path, prompt = sys.argv[1:]
    with Engine.load(path) as engine, engine.session() as session:
        for event in session.stream(prompt, Params(max_tokens=64, temperature=0)):
            if isinstance(event, Text):
                print(event.text, end="", flush=True)
            elif isinstance(event, Done):
                print(f"\n{event.result.finish_reason}, {event.result.usage}")


if __name__ == "__main__":
    main()
