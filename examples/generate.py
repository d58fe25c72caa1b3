"""Load a DeepSeek-V4 GGUF file and stream a greedy continuation.

python examples/generate.py model.gguf "def attention(query, rows):"
"""

import sys

from mlx_dsv4 import Engine, Sampling


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/generate.py MODEL.gguf PROMPT")
    path, prompt = sys.argv[1:]
    engine = Engine.load(path)
    tokens = [engine.tokenizer.bos_id, *engine.tokenizer.encode(prompt)]
    session = engine.session(context=len(tokens) + 64)
    generation = session.generate(tokens, max_tokens=64, sampling=Sampling(temperature=0))
    for piece in generation:
        print(piece, end="", flush=True)
    print(f"\n{generation.statistics}")


if __name__ == "__main__":
    main()
