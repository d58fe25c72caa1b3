"""Logits of llama.cpp, an implementation independent of ours that reads our GGUF files.

It computes plain numerics. The `xllamacpp` wheel exports llama.cpp's C API, which is called here
in a process of its own: a file that it does not survive is a failed test and not the end of pytest.
Exact on files of float32 tensors only: with quantised ones it rounds the activations too.
"""

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_float, c_int, c_int8, c_int32, c_uint32, c_void_p
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

F32 = 0  # GGML_TYPE_F32
F16 = 1
FLASH_ATTENTION_AUTO, FLASH_ATTENTION_OFF = -1, 0
ERROR = 4  # GGML_LOG_LEVEL_ERROR
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
        )
        if done.returncode != 0:
            raise RuntimeError(f"llama.cpp ended with {done.returncode} on {path}:\n{done.stderr}")
        return np.load(found)


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


PROTOTYPES = {
    "llama_log_set": (None, (c_void_p, c_void_p)),
    "llama_backend_init": (None, ()),
    "llama_model_default_params": (ModelParams, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, ModelParams)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_context_default_params": (ContextParams, ()),
    "llama_init_from_model": (c_void_p, (c_void_p, ContextParams)),
    "llama_batch_init": (Batch, (c_int32, c_int32, c_int32)),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_get_logits_ith": (POINTER(c_float), (c_void_p, c_int32)),
}


def load_library() -> ctypes.CDLL:
    """The wheel's library with its prototypes; errors that it logs go to stderr."""
    folder = Path(find_spec("xllamacpp").submodule_search_locations[0])
    library = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@CFUNCTYPE(None, c_int, c_char_p, c_void_p)
def print_errors(level: int, text: bytes, _: object) -> None:
    if level >= ERROR:
        sys.stderr.write(text.decode(errors="replace"))


def compute(path: str, tokens: list[int]) -> np.ndarray:
    """Load the file and decode all tokens as one batch."""
    llama = load_library()
    llama.llama_log_set(ctypes.cast(print_errors, c_void_p), None)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        raise RuntimeError("llama.cpp does not load the file")
    n = len(tokens)
    params = llama.llama_context_default_params()
    params.check()
    # A context is made of whole blocks of 256.
    params.n_ctx = params.n_batch = params.n_ubatch = -(-n // 256) * 256
    params.type_k = params.type_v = F32
    params.flash_attn_type = FLASH_ATTENTION_OFF
    params.n_threads = params.n_threads_batch = 2
    context = llama.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama.cpp makes no context for the model")
    batch = llama.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    status = llama.llama_decode(context, batch)
    if status != 0:
        raise RuntimeError(f"llama_decode returned {status}")
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    rows = [llama.llama_get_logits_ith(context, i) for i in range(n)]
    return np.stack([np.ctypeslib.as_array(row, (vocab,)).copy() for row in rows])


if __name__ == "__main__":
    logits = compute(sys.argv[1], [int(token) for token in np.load(sys.argv[2])])
    np.save(sys.argv[3], logits)
