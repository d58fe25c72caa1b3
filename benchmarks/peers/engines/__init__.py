"""The engines that are compared, and what each of them needs to be installed.

A module of this folder has ``load(path, setting) -> Engine``. It is imported in a process of its
own, so that nothing of one engine is in the memory of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


class Engine(Protocol):
    """One model loaded, with one session."""

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Read a prompt from the beginning of a session; logits ``[V]`` after its last token."""
        ...

    def step(self, token: int) -> Logits:
        """Append one token; the logits ``[V]`` after it."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What an engine is loaded for.

    Args:
        variant: Numerics or dtype, in the engine's own word; empty where it has one way.
        capacity: Tokens that its session has room for.
        threads: To compute with.
    """

    variant: str
    capacity: int
    threads: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the comparison.

    Args:
        name: Of the engine in the table, and for ``--engines``.
        module: Of this folder.
        packages: Distributions that must be installed; the first has the version to show.
        variant: As :class:`Setting` has it.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    variant: str = ""

    def version(self) -> str | None:
        """Of the first package; None if one is not installed."""
        try:
            versions = [version(package) for package in self.packages]
        except PackageNotFoundError:
            return None
        return versions[0]

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install {' '.join(self.packages)}"

    def load(self, path: Path, capacity: int, threads: int) -> Engine:
        """The engine in this process."""
        module = import_module(f"benchmarks.peers.engines.{self.module}")
        engine: Engine = module.load(path, Setting(self.variant, capacity, threads))
        return engine


OURS = "mlx-dsv4"
_TORCH = ("transformers", "torch")
# The first that runs is the reference, so the most exact one comes first.
ENTRIES = (
    Entry("transformers float32", "torch_transformers", _TORCH, "float32"),
    Entry(OURS, "ours", ("mlx-dsv4",), "plain"),
    Entry(f"{OURS} official", "ours", ("mlx-dsv4",), "official"),
    Entry("transformers bfloat16", "torch_transformers", _TORCH, "bfloat16"),
    Entry("llama.cpp", "llama_cpp", ("xllamacpp",)),
    Entry("flyweight-llm", "flyweight_llm", ("flyweight-llm",)),
)
