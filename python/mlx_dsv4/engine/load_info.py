"""What an engine is asked to be, what was loaded, and how it stands."""

import os
from dataclasses import dataclass

from mlx_dsv4.cache.plan import ROW_BYTES
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.errors import ConfigError, PlanError, TokenizerError
from mlx_dsv4.gguf import GGUFFile, ModelCard
from mlx_dsv4.gguf.release import Release
from mlx_dsv4.model import Numerics, WeightMemory
from mlx_dsv4.text import Tokenizer

CONTEXT_VARIABLE = "MLX_DSV4_CONTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How sessions share one model. The defaults suit one machine and a few clients.

    Args:
        anchor_bytes: Most bytes of the positions that a slot keeps to go back to (17.8 MB each
            for V4-Flash).
        store_bytes: Most bytes of saved caches on disk.
        max_waiting: Most requests that wait for a slot.
        slice_tokens: Most prompt tokens in a step while other sessions decode.
        decode_quantum: Steps without prompt tokens after one with them, while sessions decode.
        chunk: Most prompt tokens in a step otherwise, in units of 128; None: by the size of the
            weights and the cache.
        row_dtype: Of the caches; "float32" for comparison with float32 oracles.

    Raises:
        ConfigError: a number is less than it may be, or a value of the wrong type.
    """

    anchor_bytes: int = 512 * 2**20
    store_bytes: int = 32 * 2**30
    max_waiting: int = 64
    slice_tokens: int = 128
    decode_quantum: int = 4
    chunk: int | None = None
    row_dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        least = {"anchor_bytes": 0, "store_bytes": 1, "max_waiting": 1, "slice_tokens": 1}
        least |= {"decode_quantum": 0, "chunk": 1}
        for name, value in least.items():
            given = getattr(self, name)
            if given is None and name == "chunk":
                continue
            if not isinstance(given, int) or isinstance(given, bool) or given < value:
                raise ConfigError(f"{name} must be an integer >= {value}; got {given!r}")
        if self.row_dtype not in ROW_BYTES:
            words = " or ".join(ROW_BYTES)
            raise ConfigError(f"row_dtype must be {words}; got {self.row_dtype!r}")


@dataclass(frozen=True, slots=True)
class LoadInfo:
    """What was loaded, and how.

    Args:
        card: The file: name, architecture, release, config, block formats, cache bytes.
        numerics: "official" or "plain".
        device: Where the kernels run: "cpu" or "gpu".
        context: Most tokens of a session.
        slots: Sessions that can be open, or run, at once.
        tokenizer: Where it comes from, and its size.
        bos_id, eos_id: Of the tokens that begin a prompt and end a turn.
        chat_encoding: What renders messages, and for which release of the model.
        warm_up_seconds: Of the run that touched the weights before the engine was ready; None if
            it was left out.
        memory: Where the weights were when loading had ended; :meth:`Engine.memory` says where
            they are now.
        seconds: From opening the file to being ready.
    """

    card: ModelCard
    numerics: Numerics
    device: str
    context: int
    slots: int
    tokenizer: str
    bos_id: int
    eos_id: int
    chat_encoding: str
    warm_up_seconds: float | None
    memory: WeightMemory
    seconds: float


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot as it is.

    Args:
        tokens: In its cache.
        capacity_tokens: That its cache has room for.
        n_bytes: Of its cache and the positions it keeps.
        anchors: Those positions.
        held_by_session: Whether a session has it for itself.
        busy: Whether a generation runs in it.
    """

    tokens: int
    capacity_tokens: int
    n_bytes: int
    anchors: tuple[int, ...]
    held_by_session: bool
    busy: bool


@dataclass(frozen=True, slots=True)
class Status:
    """An engine as it stands between two steps.

    Args:
        slots: Each of them.
        running: Generations that have a slot.
        waiting: Requests that have none.
        scratch_bytes: Freed memory that MLX keeps for the arrays of the next steps.
    """

    slots: tuple[SlotStatus, ...]
    running: int
    waiting: int
    scratch_bytes: int


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


def serving_context(asked: int | None, config: ModelConfig) -> int:
    """The most tokens of a session: what is asked for, else the environment, else the model's.

    Raises:
        PlanError: it is not in 1..the model's context; names where it was asked for.
    """
    where, text = "context", os.environ.get(CONTEXT_VARIABLE)
    if asked is None and text is not None:
        where = CONTEXT_VARIABLE
        try:
            asked = int(text)
        except ValueError:
            raise PlanError(f"{where} must be a number of tokens; got {text!r}") from None
    context = config.context if asked is None else asked
    whole = isinstance(context, int) and not isinstance(context, bool)
    if not whole or not 1 <= context <= config.context:
        raise PlanError(f"{where} must be in 1..{config.context} tokens; got {context!r}")
    return context


def effective_release(asked: Release | None, card: ModelCard) -> Release:
    """The release that the chat encoding is for: asked for, told by the file, else 0731."""
    return asked or card.release or "0731"
