"""A file of V4-Flash's real size loads, reads a prompt and decodes: ``make full-size``."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import gguf
from mlx_dsv4 import Engine
from mlx_dsv4.gguf import GGUFFile
from mlx_dsv4.gguf.full_size import format_of, write_full_size
from mlx_dsv4.memory import process_memory

pytestmark = pytest.mark.full_size
GIB = 2**30


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    memory = process_memory()
    if memory is None:
        pytest.skip("this system does not tell")
    return memory.anonymous


@contextmanager
def reported(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds, memory = time.perf_counter() - start, anonymous_bytes() / 1e6
    print(f"{what:<28} {seconds:7.2f} s, {memory:7.0f} MB of anonymous memory", flush=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("full") / "full.gguf"
    with reported("write a sparse file"):
        write_full_size(path)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def engine(path: Path) -> Engine:
    with reported("load"):
        return Engine.load(path, warm_up=False)


def test_the_file_is_as_large_as_the_real_one(path: Path) -> None:
    assert round(path.stat().st_size / GIB, 1) == 80.8
    assert path.stat().st_blocks * 512 < 100e6
    with GGUFFile(path) as file:
        assert len(file.tensors) == 1328
        assert all(info.format == format_of(name) for name, info in file.tensors.items())


def test_blocks_at_the_end_of_the_file_are_read(engine: Engine, path: Path) -> None:
    experts = engine.model._weights.layers[42].feed_forward.routed
    with GGUFFile(path) as file:
        for name, matrix in (("gate", experts.gate), ("up", experts.up), ("down", experts.down)):
            info = file.tensors[f"blk.42.ffn_{name}_exps.weight"]
            assert info.offset > 80 * 10**9
            last = file.raw(info.name)[-matrix.data.shape[-1] :]
            expected = gguf.dequantize(last, gguf.GGMLQuantizationType[info.format.upper()])
            bank = matrix.data[255]
            row = type(matrix)(bank, matrix.format).rows(mx.array([bank.shape[0] - 1]))
            assert np.array(row).any()
            np.testing.assert_array_equal(np.array(row)[0], expected)


def test_a_prompt_is_read_and_two_tokens_are_decoded(engine: Engine) -> None:
    model, vocab = engine.model, engine.config.vocab
    cache = model.make_cache(8192)
    prompt = [vocab - 1, 5, 100_000, vocab - 100, vocab - 2]  # the last 100 rows are not zero
    with reported(f"prefill {len(prompt)} tokens"):
        state = model.prefill(prompt, cache)
    whole = np.array(state)
    assert np.isfinite(whole).all()
    assert np.abs(whole[-1]).max() > 0
    for _ in range(2):
        with reported("decode a token"):
            logits = np.array(model.logits(model.last_token_state(state)))[0]
            state = model.step(int(np.argmax(logits)), cache)
            mx.eval(state)
        assert np.isfinite(logits).all()
        assert logits.std() > 0
    with reported("one token at a time"):
        cache.reset()
        states = [np.array(model.prefill([token], cache)) for token in prompt]
    np.testing.assert_array_equal(np.concatenate(states), whole)


def test_weights_stay_in_the_file(engine: Engine, path: Path) -> None:
    assert anonymous_bytes() < 0.02 * path.stat().st_size
