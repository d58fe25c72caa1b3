"""llama.cpp through its C API, with float32 rows: it has no others for this model."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.engines import Logits, Setting
from tools.llama_library import LlamaContext, LlamaModel

# Its own default for the tokens of one call of the graph.
BATCH_TOKENS = 512


class LlamaCpp:
    """One context of the model."""

    def __init__(self, path: Path, setting: Setting) -> None:
        self._model = LlamaModel(path)
        self._setting = setting
        self._context = self._new_context()

    def _new_context(self) -> LlamaContext:
        batch = min(BATCH_TOKENS, self._setting.capacity)
        return LlamaContext(self._model, self._setting.capacity, batch, self._setting.threads)

    def prefill(self, ids: Sequence[int]) -> Logits:
        self._context.close()
        self._context = self._new_context()
        for first in range(0, len(ids), BATCH_TOKENS):
            logits = self._context.decode(ids[first : first + BATCH_TOKENS], only_last=True)
        return logits[0]

    def step(self, token: int) -> Logits:
        return self._context.decode([token], only_last=True)[0]


def load(path: Path, setting: Setting) -> LlamaCpp:
    return LlamaCpp(path, setting)
