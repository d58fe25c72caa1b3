"""A loaded model with its tokenizer: what servers and the command line hold."""

import time
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from mlx_dsv4 import ops
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.engine.session import Session
from mlx_dsv4.errors import PlanError, TokenizerError
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.model import Model, Numerics, load_weights
from mlx_dsv4.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Engine:
    """One model file, ready to serve sessions. There is no global state: several can coexist.

    Attributes:
        path: Of the GGUF file.
        model: Forward pass over its weights.
        tokenizer: Built from its vocabulary.
        load_seconds: From opening the file to being ready.
    """

    path: Path
    model: Model = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    load_seconds: float

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        numerics: Numerics = "official",
        device: ops.DeviceChoice = "auto",
    ) -> "Engine":
        """Map a GGUF file, check it, and bind its weights without reading them.

        Args:
            path: Of the file.
            numerics: "official" or "plain"; see :class:`mlx_dsv4.model.Model`.
            device: "auto" runs on the GPU where this build has kernels for it.

        Raises:
            DeviceError: "gpu" was asked for and is not there; the file has not been opened.
            FileNotFoundError: there is no such file.
            FileFormatError, UnsupportedModelError, ConfigError, TensorError, TokenizerError:
                the file cannot be run; the message names the thing, and nothing is kept.
        """
        start = time.perf_counter()
        kernel_device = ops.kernel_device(device)
        with GGUFFile(path) as file:
            weights = load_weights(file)
            tokenizer = Tokenizer.from_metadata(file.metadata)
            file_path = file.path
        if tokenizer.vocab_size > weights.config.vocab:
            raise TokenizerError(
                f"the vocabulary must fit the {weights.config.vocab} rows of token_embd.weight; "
                f"got {tokenizer.vocab_size} tokens"
            )
        model = Model(weights, numerics=numerics, device=kernel_device)
        return cls(file_path, model, tokenizer, time.perf_counter() - start)

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
