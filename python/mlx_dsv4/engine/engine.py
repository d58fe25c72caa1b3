"""A loaded model with its tokenizer: what servers and the command line hold."""

import time
from dataclasses import dataclass, field
from os import PathLike

from mlx_dsv4 import ops
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.engine.session import Session
from mlx_dsv4.errors import PlanError, TokenizerError
from mlx_dsv4.gguf import GGUFFile, ModelCard, model_card
from mlx_dsv4.gguf.preload import Progress
from mlx_dsv4.gguf.preload import preload as read_ahead
from mlx_dsv4.model import Model, Numerics, WeightMemory, load_weights
from mlx_dsv4.text import Tokenizer


def tokenizer_of(file: GGUFFile, config: ModelConfig) -> Tokenizer:
    """The tokenizer of a file.

    Raises:
        TokenizerError: the file describes none, or one with more tokens than its model has.
    """
    tokenizer = Tokenizer.from_metadata(file.metadata)
    if tokenizer.vocab_size > config.vocab:
        raise TokenizerError(
            f"the vocabulary must fit the {config.vocab} rows of token_embd.weight; "
            f"got {tokenizer.vocab_size} tokens"
        )
    return tokenizer


@dataclass(frozen=True, slots=True)
class LoadInfo:
    """What was loaded, and how.

    Args:
        card: The file: name, architecture, release, config, block formats, cache bytes.
        numerics: "official" or "plain".
        device: Where the kernels run: "cpu" or "gpu".
        memory: Where the weights were when loading had ended; :meth:`Engine.memory` says where
            they are now.
        seconds: From opening the file to being ready.
    """

    card: ModelCard
    numerics: Numerics
    device: str
    memory: WeightMemory
    seconds: float


@dataclass(frozen=True, slots=True)
class Engine:
    """One model file, ready to serve sessions. There is no global state: several can coexist.

    Used in a ``with`` statement it closes itself.

    Attributes:
        info: What was loaded.
        model: Forward pass over its weights.
        tokenizer: Built from its vocabulary.
    """

    info: LoadInfo
    model: Model = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        numerics: Numerics = "official",
        device: ops.DeviceChoice = "auto",
        preload: bool = False,
        on_preload: Progress | None = None,
    ) -> "Engine":
        """Map a GGUF file, check it, and bind its weights without reading them.

        Args:
            path: Of the file.
            numerics: "official" or "plain"; see :class:`mlx_dsv4.model.Model`.
            device: "auto" runs on the GPU where this build has kernels for it.
            preload: Read the whole file once, so that the first tokens do not wait for the disk.
            on_preload: Called with (bytes read, bytes in all) while the file is preloaded.

        Raises:
            DeviceError: "gpu" was asked for and is not there; the file has not been opened.
            OSError: the path cannot be opened, FileNotFoundError where there is no such file, or
                a read fails; names the file.
            FileFormatError, UnsupportedModelError, ConfigError, TensorError, TokenizerError:
                the file cannot be run; the message names the thing, and nothing is kept.
        """
        start = time.perf_counter()
        kernel_device = ops.kernel_device(device)
        with GGUFFile(path) as file:
            weights = load_weights(file)
            tokenizer = tokenizer_of(file, weights.config)
            card, paths = model_card(file), file.paths
        model = Model(weights, numerics=numerics, device=kernel_device)
        if preload:
            read_ahead(paths, on_preload)
        memory = weights.memory()
        seconds = time.perf_counter() - start
        info = LoadInfo(card, numerics, kernel_device.type.name, memory, seconds)
        return cls(info, model, tokenizer)

    def memory(self) -> WeightMemory:
        """Where the weights are now.

        Raises:
            ClosedError: the engine has been closed.
        """
        return self.model.memory()

    def close(self) -> None:
        """Let go of the file. Sessions of this engine raise ClosedError when they are used."""
        self.model.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> ModelConfig:
        """Numbers of the model."""
        return self.model.config

    def session(self, *, context: int, row_dtype: str = "bfloat16") -> Session:
        """An empty session.

        Args:
            context: Tokens its cache can hold, 1 to the model's context.
            row_dtype: "bfloat16", or "float32" for comparison with float32 oracles.

        Raises:
            PlanError: the context is out of range.
            AllocationError: the cache does not fit in memory.
        """
        if not 1 <= context <= self.config.context:
            raise PlanError(f"context must be in 1..{self.config.context} tokens; got {context}")
        cache = self.model.make_cache(context, row_dtype=row_dtype)
        return Session(self.model, self.tokenizer, cache)
