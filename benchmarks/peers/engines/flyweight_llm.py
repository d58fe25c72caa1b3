"""flyweight-llm through the class that its server runs DeepSeek-V4 with."""

from collections.abc import Sequence
from pathlib import Path

from flyweight.deepseek4 import Deepseek4Runtime
from flyweight.v2 import V2Model

from benchmarks.peers.engines import Logits, Setting


class Flyweight:
    """One runtime of the model; OMP_NUM_THREADS says its threads."""

    def __init__(self, path: Path, setting: Setting) -> None:
        self._model = V2Model(path)
        self._capacity = setting.capacity
        self._runtime = Deepseek4Runtime(self._model, self._capacity)

    def prefill(self, ids: Sequence[int]) -> Logits:
        self._runtime.close()
        self._runtime = Deepseek4Runtime(self._model, self._capacity)
        self._runtime.prefill(ids[:-1])
        return self.step(ids[-1])

    def step(self, token: int) -> Logits:
        logits: Logits = self._runtime.forward(token)
        return logits


def load(path: Path, setting: Setting) -> Flyweight:
    return Flyweight(path, setting)
