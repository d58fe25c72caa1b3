"""A loaded model with its tokenizer: what servers and the command line hold."""

import time
from importlib.metadata import version
from itertools import count
from os import PathLike
from weakref import finalize

import mlx.core as mx

from mlx_dsv4 import ops
from mlx_dsv4.cache import CacheStore
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.engine.arguments import check_load
from mlx_dsv4.engine.load_info import (
    LoadInfo,
    Serving,
    SlotStatus,
    Status,
    effective_release,
    serving_context,
    tokenizer_of,
)
from mlx_dsv4.engine.requests import Asked, Requests
from mlx_dsv4.engine.run import Request
from mlx_dsv4.engine.sampling import Sampler
from mlx_dsv4.engine.scheduler import Scheduler
from mlx_dsv4.engine.session import Session
from mlx_dsv4.engine.slot import Slot
from mlx_dsv4.engine.slots import Slots
from mlx_dsv4.engine.stream import Mailbox, Stream
from mlx_dsv4.engine.turns import Turns
from mlx_dsv4.engine.turns_file import TurnsFile
from mlx_dsv4.errors import ParamsError, PromptError
from mlx_dsv4.gguf import GGUFFile, model_card
from mlx_dsv4.gguf.preload import Progress as PreloadProgress
from mlx_dsv4.gguf.preload import preload as read_ahead
from mlx_dsv4.gguf.release import Release
from mlx_dsv4.model import Model, Numerics, WeightMemory, load_weights
from mlx_dsv4.text import ChatEncoding, Tokenizer
from mlx_dsv4.text.chat import CALL_MARKER, END_THINK

WARM_UP_TOKENS = 64


class Engine(Requests):
    """One model file, ready to serve. There is no global state: several can coexist.

    Its own ``generate``, ``stream``, ``chat`` and ``stream_chat`` take any free slot, the one that
    has most of the prompt; a :meth:`session` has one for itself. All of them may be called from
    any thread. Used in a ``with`` statement it closes itself.

    Attributes:
        info: What was loaded.
        model: Forward pass over its weights.
        tokenizer: Built from its vocabulary.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        info: LoadInfo,
        *,
        serving: Serving,
        store: CacheStore | None,
        chat_encoding: ChatEncoding,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.info = info
        self._chat_encoding = chat_encoding
        self._turns = Turns(
            tokenizer.find(END_THINK), tokenizer.find(CALL_MARKER), _turns_file(store, model)
        )
        self._numbers = count(1)
        self._slots = Slots(
            [
                Slot(
                    index,
                    model,
                    context=info.context,
                    row_dtype=serving.row_dtype,
                    anchor_bytes=serving.anchor_bytes,
                )
                for index in range(info.slots)
            ],
            store,
        )
        self._scheduler = Scheduler(
            model,
            self._slots,
            weight_bytes=info.card.file_backed_bytes,
            chunk=serving.chunk,
            slice_tokens=serving.slice_tokens,
            decode_quantum=serving.decode_quantum,
            max_waiting=serving.max_waiting,
        )
        self._closed = finalize(self, _close, self._scheduler, model)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        context: int | None = None,
        slots: int = 4,
        numerics: Numerics = "official",
        device: ops.DeviceChoice = "auto",
        release: Release | None = None,
        store: str | PathLike[str] | CacheStore | None = None,
        preload: bool = False,
        on_preload: PreloadProgress | None = None,
        warm_up: bool = True,
        serving: Serving | None = None,
    ) -> "Engine":
        """Map a GGUF file, check it, bind its weights and make it ready.

        Args:
            path: Of the file.
            context: Most tokens of a session, prompt and answer. None takes the environment
                variable ``MLX_DSV4_CONTEXT``, else the model's own. Caches grow as they are used.
            slots: Sessions that can be open, or requests that can run, at once.
            numerics: "official" or "plain"; see :class:`mlx_dsv4.model.Model`.
            device: "auto" runs on the GPU where this build has kernels for it.
            release: "preview" or "0731", which the chat encoding depends on; None: as the file
                says, else 0731.
            store: Folder of saved caches, or a store: what slots hold is kept there when they are
                needed for something else and when nothing runs, and found again, by this process
                or another one.
            preload: Read the whole file once, so that the first tokens do not wait for the disk.
            on_preload: Called with (bytes read, bytes in all) while the file is preloaded.
            warm_up: Read 64 tokens before it returns, so that the first request does not wait for
                pages and kernels.
            serving: How sessions share the model.

        Raises:
            DeviceError: "gpu" was asked for and is not there; the file has not been opened.
            OSError: the path cannot be opened, FileNotFoundError where there is no such file, or
                a read fails; names the file. The folder of the store cannot be made.
            FileFormatError, UnsupportedModelError, ConfigError, TensorError, TokenizerError:
                the file cannot be run; the message names the thing, and nothing is kept.
                ConfigError also for an argument that is of the wrong type.
            PlanError: ``context`` or ``slots`` is out of its range.
        """
        start = time.perf_counter()
        kernel_device = ops.kernel_device(device)
        check_load(
            path,
            slots=slots,
            numerics=numerics,
            release=release,
            store=store,
            serving=serving,
        )
        serving = serving or Serving()
        with GGUFFile(path) as file:
            weights = load_weights(file)
            tokenizer = tokenizer_of(file, weights.config)
            card, paths = model_card(file), file.paths
        context = serving_context(context, weights.config)
        if store is not None and not isinstance(store, CacheStore):
            store = CacheStore(store, serving.store_bytes)
        model = Model(weights, numerics=numerics, device=kernel_device)
        if preload:
            read_ahead(paths, on_preload)
        warmed = _warm_up(model, context, serving.row_dtype) if warm_up else None
        for_release = effective_release(release, card)
        info = LoadInfo(
            card=card,
            numerics=numerics,
            device=kernel_device.type.name,
            context=context,
            slots=slots,
            tokenizer=f"of the file, {tokenizer.vocab_size} tokens",
            bos_id=tokenizer.bos_id,
            eos_id=tokenizer.eos_id,
            chat_encoding=f"deepseek-recipe {version('deepseek-recipe')}, {for_release}",
            warm_up_seconds=warmed,
            memory=weights.memory(),
            seconds=time.perf_counter() - start,
        )
        encoding = ChatEncoding(tokenizer, for_release)
        return cls(model, tokenizer, info, serving=serving, store=store, chat_encoding=encoding)

    @property
    def config(self) -> ModelConfig:
        """Numbers of the model."""
        return self.model.config

    def memory(self) -> WeightMemory:
        """Where the weights are now.

        Raises:
            ClosedError: the engine has been closed.
        """
        return self.model.memory()

    def status(self) -> Status:
        """Its slots, and who runs and waits.

        Raises:
            ClosedError: the engine has been closed.
        """
        return self._scheduler.call(self._status)

    def session(self) -> Session:
        """An empty session, with a slot of its own until it is closed.

        Raises:
            SlotError: every slot is held by a session or busy.
            ClosedError: the engine has been closed.
        """
        scheduler = self._scheduler
        # Made there: one that an interrupted caller does not get gives its slot back.
        return scheduler.call(lambda: Session(self, scheduler.hold(), scheduler))

    def close(self) -> None:
        """End what runs, keep what the slots hold if there is a store, and let go of the file.

        Readers of running generations get ClosedError, and so does whoever uses it afterwards.
        """
        self._closed()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Engine({str(self.info.card.path)!r})"

    def submit(self, asked: Asked, *, slot: Slot | None = None) -> Stream:
        """Let a prompt wait for its slot; sessions and the engine itself use this.

        Raises:
            PromptError, ParamsError, SlotError, ClosedError: as :meth:`stream`.
        """
        prompt, params = self.model.check_tokens(asked.prompt), asked.params
        context, vocab = self.info.context, self.config.vocab
        if len(prompt) > context:
            raise PromptError(
                f"the prompt must fit the context of {context} tokens; got {len(prompt)}"
            )
        for token in params.stop_ids:
            if token >= vocab:
                raise ParamsError(f"stop_ids must be in 0..{vocab - 1}; got {token}")
        mailbox = Mailbox()
        self._scheduler.submit(
            Request(
                number=next(self._numbers),
                prompt=prompt,
                params=params,
                output=asked.output,
                mailbox=mailbox,
                stop_ids=self.tokenizer.stop_ids | frozenset(params.stop_ids),
                limit=decode_limit(params.max_tokens, context=context, prompt_tokens=len(prompt)),
                sampler=Sampler(params, vocab),
                anchors=asked.anchors,
                slot=slot,
                on_done=asked.on_done,
            )
        )
        return Stream(mailbox, self)

    def chat_parts(self) -> tuple[ChatEncoding, Turns]:
        """What renders messages, and the answers that were sampled."""
        return self._chat_encoding, self._turns

    _chat_parts = chat_parts

    def _submit(self, asked: Asked) -> Stream:
        return self.submit(asked)

    def _status(self) -> Status:
        slots = tuple(
            SlotStatus(
                tokens=len(slot.ledger),
                capacity_tokens=slot.capacity_tokens,
                n_bytes=slot.held_bytes(),
                anchors=tuple(slot.held().anchors),
                held_by_session=slot.held_by_session,
                busy=slot.busy,
            )
            for slot in self._slots
        )
        return Status(slots, *self._scheduler.counts(), mx.get_cache_memory())


def decode_limit(max_tokens: int | None, *, context: int, prompt_tokens: int) -> int:
    """How many tokens may be generated: the last sampled one needs no row in the cache."""
    room = context - prompt_tokens + 1
    return room if max_tokens is None else min(max(max_tokens, 1), room)


def _turns_file(store: CacheStore | None, model: Model) -> TurnsFile | None:
    """Where answers of this vocabulary are kept beside the saved caches."""
    if store is None:
        return None
    name = f"turns-{model.fingerprint().tokenizer}.jsonl"
    return TurnsFile(store.folder / name, model.config.vocab)


def _warm_up(model: Model, context: int, row_dtype: str) -> float:
    """Read some tokens and compute their logits, in a cache of its own; seconds."""
    start = time.perf_counter()
    n_tokens = min(WARM_UP_TOKENS, context)
    cache = model.make_cache(n_tokens, row_dtype=row_dtype)
    state = model.prefill([i % model.config.vocab for i in range(n_tokens)], cache)
    mx.eval(model.logits(model.last_token_state(state)))
    return time.perf_counter() - start


def _close(scheduler: Scheduler, model: Model) -> None:
    scheduler.close()
    model.close()
