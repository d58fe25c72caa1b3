"""Logits of llama.cpp, an implementation independent of ours that reads our GGUF files.

It computes plain numerics. It runs in a process of its own: a file that it does not survive is a
failed test and not the end of pytest. Exact on files of float32 tensors only: with quantised ones
it rounds the activations too.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tools.llama_library import LlamaContext, LlamaModel

ROOT = Path(__file__).parents[2]
SECONDS = 120


def llama_logits(path: str | Path, tokens: Sequence[int]) -> np.ndarray:
    """Logits of every token of one call, ``[T, V]`` float32, with float32 rows.

    Raises:
        RuntimeError: llama.cpp refused the file or died; the message carries what it printed.
    """
    with TemporaryDirectory() as folder:
        given, found = Path(folder) / "tokens.npy", Path(folder) / "logits.npy"
        np.save(given, np.asarray(tokens, np.int32))
        done = subprocess.run(
            [sys.executable, __file__, str(path), str(given), str(found)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        if done.returncode != 0:
            raise RuntimeError(f"llama.cpp ended with {done.returncode} on {path}:\n{done.stderr}")
        return np.load(found)


def compute(path: Path, tokens: list[int]) -> np.ndarray:
    """Load the file and decode all tokens as one batch."""
    context = LlamaContext(LlamaModel(path), len(tokens), -(-len(tokens) // 256) * 256, threads=2)
    return context.decode(tokens)


if __name__ == "__main__":
    logits = compute(Path(sys.argv[1]), [int(token) for token in np.load(sys.argv[2])])
    np.save(sys.argv[3], logits)
