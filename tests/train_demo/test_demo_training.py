"""The trainer of the demo model, on a model of a few thousand weights."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gguf
from agreement import LOGIT_BOUND
from mlx_dsv4.config import ModelConfig
from mlx_dsv4.gguf.tiny import tiny_config
from small_cases import SMALL
from tools.train_demo import bits
from tools.train_demo.corpus import Source
from tools.train_demo.export import export, stored_state
from tools.train_demo.model import IndexerTeacher, build, mxfp4_round_trip, set_sparse
from tools.train_demo.prepare import load_vocabulary, prepare, tokenizer_of
from tools.train_demo.schedule import Schedule, Stage
from tools.train_demo.train import CheckpointError, Rows, Run, train
from transformers_oracle import one_thread

pytestmark = pytest.mark.oracle

CONFIG = SMALL | {"heads": 4, "ratios": (0, 4, 128), "hash_layers": 1, "top_k": 4}
SCHEDULE = Schedule(
    (Stage(4, 136, 2, 2, False, False), Stage(4, 136, 2, 1, True, True)), peak=3e-3, warm_up=2
)
LINES = 'def sum_of(a, b):\n    """Return the sum of a and b."""\n    return a + b\n\n\n'


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return tiny_config(**CONFIG, clamp=(10.0,) * 3, clamp_shared=(10.0,) * 3)


@pytest.fixture(scope="module")
def prepared(config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    names = ["a.py", "test/b.py", *(f"m{i}.py" for i in range(200))]
    numbered = [Source(name, LINES.replace("sum", f"sum{i}") * 30) for i, name in enumerate(names)]
    assert any(source.held_out for source in numbered)
    prepare(folder, numbered, config)
    return folder


def run(prepared: Path, out: Path, **more: Any) -> dict[str, torch.Tensor]:
    with one_thread():
        options = {"every": 2} | more
        train(Run(prepared, out, "cpu", **options), SCHEDULE, say=lambda line: None)
    path = out / "weights.pt"
    return torch.load(path, weights_only=True) if path.exists() else {}


@pytest.fixture(scope="module")
def trained(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    run(prepared, out)
    return out


def test_documents_begin_and_end_and_conversations_are_as_chat_renders_them(
    prepared: Path,
) -> None:
    tokenizer = tokenizer_of(load_vocabulary(prepared))
    for name in ("library", "tests", "held_out", "chat"):
        ids = np.load(prepared / f"{name}.npy")
        assert ids[0] == tokenizer.bos_id
        assert ids[-1] == tokenizer.eos_id
        assert (ids == tokenizer.bos_id).sum() == (ids == tokenizer.eos_id).sum()
    text = tokenizer.decode(np.load(prepared / "chat.npy").tolist())
    answer = r"<｜Assistant｜></think>Return the sum\d+ of a and b.<｜end▁of▁sentence｜>"
    assert re.search(answer, text)
    thought = r"<think>The function takes `a`, `b`\. Return the sum\d+ of a and b\.</think>"
    assert re.search(f"<｜Assistant｜>{thought}", text)


def test_training_learns_and_says_so(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert lines[-1]["held_out"] < lines[0]["held_out"] - 0.3
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.3


def test_a_stopped_run_goes_on_to_the_same_weights(
    prepared: Path, trained: Path, tmp_path: Path
) -> None:
    assert run(prepared, tmp_path, seconds=0.0) == {}
    resumed = run(prepared, tmp_path)
    whole = torch.load(trained / "weights.pt", weights_only=True)
    assert resumed.keys() == whole.keys()
    for name, weights in whole.items():
        assert torch.equal(resumed[name], weights), name


def test_a_killed_run_goes_on_from_its_checkpoint_without_repeating_the_log(
    prepared: Path, trained: Path, tmp_path: Path
) -> None:
    run(prepared, tmp_path, seconds=0.0)
    log, whole = tmp_path / "log.jsonl", (trained / "log.jsonl").read_text().splitlines()
    log.write_text("\n".join(whole[:3]) + "\n")  # killed after step 6, checkpoint at step 1
    run(prepared, tmp_path)
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == [2, 4, 6, 8]


@pytest.mark.parametrize("content", [b"", b"hi\n", b"not a checkpoint", None])
def test_a_damaged_checkpoint_is_named(
    prepared: Path, tmp_path: Path, content: bytes | None
) -> None:
    run(prepared, tmp_path, seconds=0.0)
    checkpoint = tmp_path / "checkpoint.pt"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: must be a checkpoint"):
        run(prepared, tmp_path)


def test_what_the_log_reads_teaches_nothing(prepared: Path, trained: Path, tmp_path: Path) -> None:
    often = run(prepared, tmp_path, every=1)
    whole = torch.load(trained / "weights.pt", weights_only=True)
    for name, weights in whole.items():
        assert torch.equal(often[name], weights), name


def test_rows_depend_on_seed_and_step_alone(prepared: Path) -> None:
    stage = SCHEDULE.stages[0]
    rows = Rows(prepared, 0).draw(3, stage)
    assert rows.shape == (2, 137)
    np.testing.assert_array_equal(rows, Rows(prepared, 0).draw(3, stage))
    assert (rows != Rows(prepared, 1).draw(3, stage)).any()
    assert (rows != Rows(prepared, 0).draw(4, stage)).any()


def test_rounded_experts_are_what_the_file_keeps() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(40, 64, generator=generator) * 10 ** torch.linspace(-6, 4, 40)[:, None]
    weights[3] = 0
    weights[4, :4] = torch.tensor([5.0, 2.5, 1.75, -0.25])  # halfway between codes
    packed = gguf.quants.quantize(weights.numpy(), gguf.GGMLQuantizationType.MXFP4)
    kept = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(mxfp4_round_trip(weights).numpy(), kept)


def test_all_experts_at_once_are_transformers_experts(prepared: Path) -> None:
    model = build(prepared, 0)
    experts = model.model.layers[1].mlp.experts
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(10, 128, generator=generator)
    ids = torch.randint(0, 8, (10, 2), generator=generator)
    ids[0] = 5  # one expert twice
    weights = torch.rand(10, 2, generator=generator)
    with torch.no_grad():
        theirs = type(experts).forward(experts, hidden, ids, weights)
        difference = (experts(hidden, ids, weights) - theirs).abs().max()
    assert theirs.abs().max() > 1e-3
    assert difference <= 1e-5 * theirs.abs().max()


def test_the_indexers_loss_teaches_the_indexer_and_nothing_else(prepared: Path) -> None:
    model = build(prepared, 0)
    teacher = IndexerTeacher(model)
    set_sparse(model, sparse=False)
    ids = torch.randint(0, 500, (1, 64), generator=torch.Generator().manual_seed(0))
    model(ids, use_cache=False)
    loss = teacher.take()
    loss.backward()
    assert loss > 0
    taught = {name for name, weights in model.named_parameters() if weights.grad is not None}
    indexers = {name for name, _ in model.named_parameters() if ".indexer." in name}
    assert taught == indexers


def test_the_file_computes_what_the_trained_model_computes(
    prepared: Path, trained: Path, config: ModelConfig, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    export(prepared, trained / "weights.pt", config, path)
    model = build(prepared, 1).eval()
    model.load_state_dict(stored_state(path), strict=True)
    row = np.load(prepared / "held_out.npy")[:300].astype(np.int64)
    theirs = bits.torch_logits(model, row)
    ours = bits.engine_logits(bits.load(path, "plain"), row, (7, 128, 1), row_dtype="float32")
    assert np.abs(ours - theirs).max() <= LOGIT_BOUND
    model.load_state_dict(torch.load(trained / "weights.pt", weights_only=True))
    rounding = np.abs(bits.torch_logits(model, row) - theirs).max()
    assert LOGIT_BOUND < rounding < 0.3


def test_ablations_change_what_they_name_and_leave_no_trace(prepared: Path) -> None:
    model = build(prepared, 0).eval()
    set_sparse(model, sparse=True)
    row = np.load(prepared / "held_out.npy")[:400].astype(np.int64)
    plain = bits.torch_logits(model, row)

    def first_change(change: Any) -> int:
        with change:
            changed = (bits.torch_logits(model, row) != plain).any(1)
        return int(np.argmax(changed)) if changed.any() else -1

    assert first_change(bits.without_rows(model, (4,))) == 3
    assert first_change(bits.without_rows(model, (128,))) == 127
    # With more than top_k rows there is something to choose.
    assert first_change(bits.newest_rows(model)) >= 19
    assert first_change(bits.random_rows(model)) >= 19
    assert first_change(bits.all_rows(model)) >= 19
    np.testing.assert_array_equal(bits.torch_logits(model, row), plain)


def test_bits_per_byte_of_a_worked_case(prepared: Path) -> None:
    tokenizer = tokenizer_of(load_vocabulary(prepared))
    ids = np.array([tokenizer.bos_id, *tokenizer.encode("def def")], np.int64)
    assert [tokenizer.bytes_of(int(i)) for i in ids[1:]] == [b"def", b" ", b"def"]
    logits = np.zeros((4, 2), np.float32)
    logits = np.full((4, tokenizer.vocab_size), -np.inf, np.float32)
    for at, share in enumerate((0.5, 0.25, 0.125)):
        logits[at, ids[at + 1]] = np.log(share)
        logits[at, 5] = np.log(1 - share)
    meter = bits.Meter(tokenizer, shortest=4)
    meter.add(ids, logits)
    assert meter.bits_per_byte == pytest.approx((1 + 2 + 3) / 7)
    # The third token begins a row of the shorter context, where nothing predicts it.
    meter = bits.Meter(tokenizer, shortest=2)
    meter.add(ids, logits)
    assert meter.bits_per_byte == pytest.approx((1 + 3) / 6)
