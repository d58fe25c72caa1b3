"""The whole model on the GPU: one answer to the bit, near NumPy's, by every kernel.

The GPU is the simulated one, and a Mac's where there is one. A prompt just beyond 128 tokens
goes through a layer of each kind: the ring wraps, rows of both ratios close and are read, rows
are selected, experts are hashed and scored, weights are packed.
"""

import re
from dataclasses import dataclass
from functools import cache

import mlx.core as mx
import numpy as np
import pytest

from executors import EXECUTORS, SHADERS, running_on, simulated_extension
from mlx_dsv4.gguf.tiny import Formats
from mlx_dsv4.reference.model import forward
from tiny_models import TinyModel, random_tokens, tiny_model

TOKENS = 140
# Where they may, numbers and formats are those of the kernels' tests, whose compiled shaders serve.
SMALL = {"hidden": 64, "vocab": 320, "heads": 4, "head_dim": 192, "q_rank": 32, "top_k": 8}
SMALL |= {"output_rank": 32, "output_groups": 2, "expert_hidden": 32, "indexer_heads": 4}
PACKED = Formats("q8_0", "mxfp4", "bf16", "q8_0", "q8_0")
CUTS = {
    "by ones": (1,) * TOKENS,
    "by threes": (3,) * (TOKENS // 3) + (TOKENS % 3,),
    "at 127": (127, 1, 1, TOKENS - 129),
    "at 128": (128, TOKENS - 128),
    "at 129": (129, TOKENS - 129),
    "anywhere": (1, 6, 24, 64, 2, TOKENS - 97),
}
# Selection in slices begins beyond this prompt's rows.
NOT_LAUNCHED = {"indexer_merge"}

gpus = [
    pytest.param(name, marks=pytest.mark.metal) if name == "metal" else name
    for name in EXECUTORS
    if name in ("sim", "metal")
]
on_every_gpu = pytest.mark.parametrize("gpu", gpus)


@dataclass(frozen=True)
class Answer:
    """The logits of all tokens, and the names of the kernels that made them."""

    logits: np.ndarray
    kernels: frozenset[str]


def tiny() -> TinyModel:
    return tiny_model(formats=PACKED, ratios=(0, 4, 128), hash_layers=1, **SMALL)


@cache
def answer(gpu: str, chunks: tuple[int, ...] = (TOKENS,), order: str = "forward") -> Answer:
    """Reads the prompt in chunks, each with its own logits; chunks of one token as decode steps."""
    prompt, start, logits = random_tokens(tiny().config, TOKENS), 0, []
    controls = simulated_extension().controls if gpu == "sim" else None
    with running_on(gpu, order=order, seed=1):
        if controls:
            controls.clear_launches()
        model = tiny().load("official", mx.gpu if gpu == "metal" else mx.cpu)
        rows = model.make_cache(TOKENS)
        for size in chunks:
            tokens = prompt[start : start + size]
            state = model.step(tokens[0], rows) if size == 1 else model.prefill(tokens, rows)
            logits.append(np.array(model.logits(state)))
            start += size
        assert start == TOKENS
        launches = controls.launches() if controls else []
    return Answer(np.concatenate(logits), frozenset(launch["kernel"] for launch in launches))


@cache
def numpy_logits(dtype: str) -> np.ndarray:
    tokens = np.array(random_tokens(tiny().config, TOKENS))
    return forward(tiny().config, tiny().weights, tokens, numerics="official", dtype=dtype)


@on_every_gpu
@pytest.mark.parametrize("cut", CUTS)
def test_a_prompt_cut_anywhere_gives_the_same_logits(gpu: str, cut: str) -> None:
    np.testing.assert_array_equal(answer(gpu, CUTS[cut]).logits, answer(gpu).logits)


@pytest.mark.simulated
@pytest.mark.parametrize("order", ["reverse", "random"])
def test_the_order_of_threads_changes_no_logit(order: str) -> None:
    np.testing.assert_array_equal(answer("sim", order=order).logits, answer("sim").logits)


@on_every_gpu
def test_logits_equal_the_numpy_model(gpu: str) -> None:
    """As near as the CPU's: half of what rounding to bfloat16 does (see `test_parity.py`)."""
    theirs = numpy_logits("bfloat16")
    moved = np.abs(theirs - numpy_logits("float32")).max(1)
    worst = np.abs(answer(gpu).logits - theirs).max(1)
    assert theirs.std() > 2
    assert np.median(worst) <= np.median(moved) / 2


@pytest.mark.simulated
def test_the_model_launches_every_kernel() -> None:
    launched = answer("sim").kernels | answer("sim", CUTS["by ones"]).kernels
    written = {
        name
        for path in SHADERS.glob("*.metal")
        for name in re.findall(r"\[\[kernel\b.*\]\] void (\w+)\(", path.read_text())
    }
    missing = {name for name in written if not any(is_of(kernel, name) for kernel in launched)}
    assert missing == NOT_LAUNCHED


def is_of(launched: str, kernel: str) -> bool:
    """Whether a host name is that of a kernel, or of one of its instantiations."""
    argument = r"_(\d+|float|bfloat|half|packed_u\w+4)"
    return re.fullmatch(rf"{kernel}({argument})*", launched) is not None
