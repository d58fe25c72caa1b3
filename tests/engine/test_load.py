"""What loading says, where the weights are afterwards, and what closing gives back."""

import gc
import os
import threading
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_dsv4 import Engine, Params, ops
from mlx_dsv4.engine import Serving
from mlx_dsv4.errors import ClosedError, FileFormatError, PlanError, TensorError
from mlx_dsv4.gguf import GGUFFile, expected_tensors
from mlx_dsv4.gguf.preload import PIECE_BYTES, preload
from mlx_dsv4.gguf.tiny import Formats, random_weights, tiny_config, write_model
from mlx_dsv4.gguf.vocabulary import make_vocabulary
from mlx_dsv4.model import load_weights


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    config = tiny_config(ratios=(0, 4))
    formats = Formats(dense="q8_0", experts="mxfp4", embedding="bf16", output="q8_0")
    write_model(path, config, random_weights(config, 0), formats, make_vocabulary(config.vocab))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path


def mappings(path: Path) -> list[dict[str, int]]:
    """What the system says of each mapping of a file in this process, in bytes."""
    found: list[dict[str, int]] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            inside = line.endswith(str(path))
            found += [{}] if inside else []
        elif inside and words[-1] == "kB":
            found[-1][words[0].rstrip(":")] = int(words[1]) * 1024
    return found


def test_info_says_what_was_loaded(path: Path) -> None:
    with Engine.load(path, numerics="plain", device="cpu") as engine:
        info = engine.info
    assert (info.card.path, info.card.n_bytes) == (path, path.stat().st_size)
    assert (info.numerics, info.device) == ("plain", "cpu")
    assert info.card.config == engine.config
    assert info.seconds > 0


def test_info_is_complete(path: Path) -> None:
    with Engine.load(path, context=300, slots=3) as engine:
        info, config = engine.info, engine.config
    assert (info.context, info.slots) == (300, 3)
    assert (info.bos_id, info.eos_id) == (0, 1)
    assert info.tokenizer == f"of the file, {config.vocab} tokens"
    assert info.chat_encoding.startswith("deepseek-recipe ")
    assert info.card.quantization == "q8_0 + mxfp4 + bf16 + f32"
    assert 4.25 < info.card.bits_per_weight < 16  # mxfp4, bf16
    assert 0 < info.warm_up_seconds < info.seconds


def test_the_context_is_asked_for_or_of_the_environment_or_the_models(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def context(**options: int) -> int:
        with Engine.load(path, warm_up=False, **options) as engine:
            return engine.info.context

    assert context() == 4096
    monkeypatch.setenv("MLX_DSV4_CONTEXT", "700")
    assert context() == 700
    assert context(context=500) == 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", r"MLX_DSV4_CONTEXT must be in 1\.\.4096 tokens; got 0"),
        ("4097", r"MLX_DSV4_CONTEXT must be in 1\.\.4096 tokens; got 4097"),
        ("8K", "MLX_DSV4_CONTEXT must be a number of tokens; got '8K'"),
    ],
)
def test_a_context_of_the_environment_that_cannot_be_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setenv("MLX_DSV4_CONTEXT", text)
    with pytest.raises(PlanError, match=message):
        Engine.load(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, r"context must be in 1\.\.4096 tokens; got 0"),
        ({"context": 4097}, r"context must be in 1\.\.4096 tokens; got 4097"),
        ({"slots": 0}, r"slots must be an integer in 1\.\.1024; got 0"),
    ],
)
def test_numbers_out_of_range_are_refused(path: Path, options: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Engine.load(path, **options)
    assert mappings(path) == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_waiting", 0, "max_waiting must be an integer >= 1; got 0"),
        ("slice_tokens", 2.5, r"slice_tokens must be an integer >= 1; got 2\.5"),
        ("chunk", 0, "chunk must be an integer >= 1; got 0"),
        ("anchor_bytes", -1, "anchor_bytes must be an integer >= 0; got -1"),
    ],
)
def test_serving_is_checked(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Serving(**{field: value})


def test_warming_up_reads_the_weights_and_leaves_nothing(path: Path) -> None:
    with Engine.load(path, warm_up=False) as engine:
        assert engine.info.warm_up_seconds is None
        cold = engine.generate([1, 2, 3], Params(max_tokens=5, temperature=0))
    with Engine.load(path) as engine:
        assert engine.info.warm_up_seconds > 0
        assert [slot.tokens for slot in engine.status().slots] == [0] * 4
        warm = engine.generate([1, 2, 3], Params(max_tokens=5, temperature=0))
    assert (warm.tokens, warm.reuse.kind) == (cold.tokens, "reset")


def test_matrices_stay_in_the_file_and_the_rest_is_decoded(path: Path) -> None:
    with Engine.load(path) as engine, GGUFFile(path) as file:
        specs = expected_tensors(engine.config)
        matrices = [n for n, spec in specs.items() if spec.role == "matrix"]
        others = specs.keys() - set(matrices)
        memory = engine.memory()
        assert memory.file_backed == sum(file.tensors[name].n_bytes for name in matrices)
        assert memory.anonymous == sum(4 * file.tensors[name].n_elements for name in others)
        card = engine.info.card
        assert (card.file_backed_bytes, card.anonymous_bytes) == (
            memory.file_backed,
            memory.anonymous,
        )


def test_pages_that_were_used_can_be_dropped(path: Path) -> None:
    """They are in memory, and nothing of them is this process's own."""
    with Engine.load(path) as engine:
        mx.eval(engine.model.prefill(list(range(40)), engine.model.make_cache(64)))
        (mapping,) = mappings(path)
        assert mapping["Rss"] > engine.memory().file_backed / 2
        for own in ("Anonymous", "Private_Dirty", "Shared_Dirty", "Swap"):
            assert mapping[own] == 0, own


def test_preloading_reads_everything_and_says_how_far_it_is(tmp_path: Path) -> None:
    sizes = (2 * PIECE_BYTES + 5, 10_000)
    paths = [tmp_path / str(size) for size in sizes]
    for path, size in zip(paths, sizes, strict=True):
        with path.open("wb") as file:
            file.truncate(size)
    files = [ops.MappedFile(path) for path in paths]
    assert [file.resident_bytes() for file in files] == [0, 0]
    steps: list[tuple[int, int]] = []
    preload(paths, lambda done, total: steps.append((done, total)))
    done = [PIECE_BYTES, 2 * PIECE_BYTES, sizes[0], sum(sizes)]
    assert steps == [(n_bytes, sum(sizes)) for n_bytes in done]
    assert [file.resident_bytes() for file in files] == list(sizes)


def test_an_engine_is_preloaded_on_demand(path: Path) -> None:
    steps: list[tuple[int, int]] = []
    size = path.stat().st_size
    with Engine.load(path, preload=True, on_preload=lambda *step: steps.append(step)) as engine:
        assert steps[-1] == (size, size)
        assert engine.info.memory.resident == size
    steps.clear()
    with Engine.load(path, on_preload=lambda *step: steps.append(step)):
        assert steps == []


@pytest.mark.parametrize("change", ["replaced", "cut", "deleted"])
def test_a_file_that_changes_while_it_is_loaded_is_refused(path: Path, change: str) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    with GGUFFile(path) as file:
        if change == "replaced":
            other.replace(path)
        elif change == "cut":
            os.truncate(path, path.stat().st_size - 4096)
        else:
            path.unlink()
        with pytest.raises(FileFormatError, match="must stay while it is loaded"):
            load_weights(file)


NOT_FINITE = {
    # Where a number lies, from the end of a tensor, and NaN, inf and -inf there.
    "f32": (4, ("0000c07f", "0000807f", "000080ff")),
    "f16": (2, ("007e", "007c", "00fc")),
    "bf16": (2, ("c07f", "807f", "80ff")),
    "q8_0": (34, ("007e", "007c", "00fc")),
}


@pytest.mark.parametrize("format", NOT_FINITE)
def test_every_decoded_tensor_must_be_finite(tmp_path: Path, format: str) -> None:
    path = tmp_path / "tiny.gguf"
    config = tiny_config(ratios=(0, 4), hash_layers=1, vocab=300, hidden=64, expert_hidden=32)
    weights, formats = random_weights(config, 0), Formats(elementwise=format)
    write_model(path, config, weights, formats, make_vocabulary(300))
    with GGUFFile(path) as file:
        load_weights(file)
        specs = expected_tensors(config).items()
        infos = [file.tensors[name] for name, spec in specs if spec.role == "elementwise"]
    whole = path.read_bytes()
    assert format in {info.format for info in infos}
    for number, info in enumerate(infos):
        from_end, values = NOT_FINITE[info.format]
        raw, at = bytearray(whole), info.offset + info.n_bytes - from_end
        value = bytes.fromhex(values[number % 3])
        raw[at : at + len(value)] = value
        path.write_bytes(raw)
        with (
            GGUFFile(path) as file,
            pytest.raises(
                TensorError, match=rf"{info.name} must hold finite values; got"
            ) as caught,
        ):
            load_weights(file)
        assert caught.value.wrong == (info.name,)


def test_closing_ends_what_runs_and_waits(path: Path) -> None:
    with Engine.load(path, slots=1) as engine:
        streams = [engine.stream([1, 2, seed], Params(seed=seed)) for seed in range(3)]
        next(iter(streams[0]))
        streams[0] = engine.stream([1, 2, 3], Params(logit_bias={1: -1e3}))
    for stream in streams:
        with pytest.raises(ClosedError, match="has been closed"):
            stream.result()
    assert not [t for t in threading.enumerate() if t.name == "mlx-dsv4 model"]


def test_closing_ends_the_mapping(path: Path) -> None:
    engine = Engine.load(path)
    session = engine.session()
    session.generate([1, 2, 3], Params(max_tokens=2))
    assert len(mappings(path)) == 1
    engine.close()
    assert mappings(path) == []
    engine.close()


def test_an_engine_that_nobody_refers_to_closes_itself(path: Path) -> None:
    engine = Engine.load(path)
    engine.generate([1, 2, 3], Params(max_tokens=2))
    del engine
    gc.collect()
    assert mappings(path) == []
    assert not [t for t in threading.enumerate() if t.name == "mlx-dsv4 model"]


def test_work_that_was_queued_before_closing_is_done(path: Path) -> None:
    with Engine.load(path) as engine:
        state = engine.model.prefill([5, 6, 7], engine.model.make_cache(8))
        expected = np.array(engine.model.logits(state))
        logits = engine.model.logits(state)
    np.testing.assert_array_equal(np.array(logits), expected)
    del logits
    assert mappings(path) == []


def test_a_closed_engine_says_so(path: Path) -> None:
    with Engine.load(path) as engine:
        session = engine.session()
        cache = engine.model.make_cache(8)
        state = engine.model.prefill([1, 2], cache)
    message = "DeepSeek-V4 tiny must be open; it has been closed"
    for call in (
        lambda: session.generate([1, 2, 3]),
        lambda: session.tokens,
        lambda: session.save(path.with_suffix(".saved")),
        lambda: engine.generate([1, 2, 3]),
        lambda: engine.chat([{"role": "user", "content": "hi"}]),
        engine.session,
        engine.status,
        lambda: engine.model.prefill([1], cache),
        lambda: engine.model.step(1, cache),
        lambda: engine.model.logits(state),
        engine.memory,
    ):
        with pytest.raises(ClosedError, match=message):
            call()
    assert cache.position == 2
