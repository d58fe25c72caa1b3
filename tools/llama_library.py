"""llama.cpp through the C API that the `xllamacpp` wheel exports.

Called in a process that may die: the library aborts on some files, and on some numbers of a model.
"""

import ctypes
import sys
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_float, c_int, c_int8, c_int32, c_uint32, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = 0  # GGML_TYPE_F32
F16 = 1
FLASH_ATTENTION_AUTO, FLASH_ATTENTION_OFF = -1, 0
ERROR = 4  # GGML_LOG_LEVEL_ERROR

# What llama_context_default_params fills in.
CONTEXT_DEFAULTS = {
    **{"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_rs_seq": 0},
    **{"n_outputs_max": 0, "n_outputs_max_per_seq": 1, "n_threads": 4, "n_threads_batch": 4},
    **{"ctx_type": 0, "rope_scaling_type": -1, "pooling_type": -1, "attention_type": -1},
    **{"flash_attn_type": FLASH_ATTENTION_AUTO, "rope_freq_base": 0, "rope_freq_scale": 0},
    **{"yarn_ext_factor": -1, "yarn_attn_factor": -1, "yarn_beta_fast": -1},
    **{"yarn_beta_slow": -1, "yarn_orig_ctx": 0, "defrag_thold": -1},
    **{"cb_eval": None, "cb_eval_user_data": None, "type_k": F16, "type_v": F16},
}


class ModelParams(ctypes.Structure):
    """llama_model_params, passed on as its own defaults: larger than it is in any version."""

    _fields_ = (("opaque", c_int8 * 1024),)


class ContextParams(ctypes.Structure):
    """llama_context_params as far as it is read here; `check` proves the layout."""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("opaque", c_int8 * 1024),
    )

    def check(self) -> None:
        """Another build may have other fields: its defaults would not be where they are read."""
        found = {name: getattr(self, name) for name in CONTEXT_DEFAULTS}
        if found != CONTEXT_DEFAULTS:
            raise RuntimeError(f"llama_context_params has another layout; read {found}")


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_log_set": (None, (c_void_p, c_void_p)),
    "llama_backend_init": (None, ()),
    "llama_model_default_params": (ModelParams, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_context_default_params": (ContextParams, ()),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_free": (None, (c_void_p,)),
    "llama_batch_init": (Batch, (c_int32, c_int32, c_int32)),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_get_logits_ith": (POINTER(c_float), (c_void_p, c_int32)),
}


def print_errors(level: int, text: bytes, _: object) -> None:
    """Errors that the library logs go to stderr; the rest of its log is left out."""
    if level >= ERROR:
        sys.stderr.write(text.decode(errors="replace"))


# The library calls it as long as it is loaded.
LOG = CFUNCTYPE(None, c_int, c_char_p, c_void_p)(print_errors)


def load_library() -> ctypes.CDLL:
    """The wheel's library with its prototypes.

    Raises:
        ImportError: the wheel is not installed.
    """
    wheel = find_spec("xllamacpp")
    if wheel is None or not wheel.submodule_search_locations:
        raise ImportError("xllamacpp must be installed; it is not")
    folder = Path(wheel.submodule_search_locations[0])
    library = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(ctypes.cast(LOG, c_void_p), None)
    library.llama_backend_init()
    return library


class LlamaModel:
    """A loaded file.

    Args:
        path: Of a GGUF file.

    Raises:
        RuntimeError: llama.cpp refuses the file.
    """

    def __init__(self, path: Path) -> None:
        self.library = load_library()
        params = self.library.llama_model_default_params()
        self.handle = self.library.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp must load {path}; it does not")
        vocab = self.library.llama_model_get_vocab(self.handle)
        self.vocab: int = self.library.llama_vocab_n_tokens(vocab)


class LlamaContext:
    """One session with float32 rows, without flash attention, which this model does not have.

    Args:
        model: To run.
        capacity: Tokens of the session.
        batch: Most tokens of one call of the graph.
        threads: To compute with.

    Raises:
        RuntimeError: llama.cpp makes no such context.
    """

    def __init__(self, model: LlamaModel, capacity: int, batch: int, threads: int) -> None:
        self._model = model
        self._library = model.library
        params = self._library.llama_context_default_params()
        params.check()
        # A context is made of whole blocks of 256.
        params.n_ctx = -(-capacity // 256) * 256
        params.n_batch = params.n_ubatch = batch
        params.type_k = params.type_v = F32
        params.flash_attn_type = FLASH_ATTENTION_OFF
        params.n_threads = params.n_threads_batch = threads
        self._handle = self._library.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise RuntimeError(f"llama.cpp must make a context of {params.n_ctx}; it does not")
        self._batch = self._library.llama_batch_init(batch, 0, 1)
        self._position = 0

    def decode(self, tokens: Sequence[int], *, only_last: bool = False) -> NDArray[np.float32]:
        """Append the tokens of one batch; logits ``[T, V]`` of all of them, or of the last.

        Raises:
            RuntimeError: llama.cpp refuses the batch.
        """
        batch, n = self._batch, len(tokens)
        batch.n_tokens = n
        wanted = [n - 1] if only_last else range(n)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, self._position + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i in wanted
        status = self._library.llama_decode(self._handle, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode must return 0; got {status}")
        self._position += n
        rows = [self._library.llama_get_logits_ith(self._handle, i) for i in wanted]
        return np.stack([np.ctypeslib.as_array(row, (self._model.vocab,)) for row in rows])

    def close(self) -> None:
        """Give the memory of its rows back."""
        self._library.llama_free(self._handle)
        self._handle = None
