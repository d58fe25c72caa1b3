"""The training loop: AdamW on rows of code and conversations, seeded, and restartable."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.train_demo.model import ExpertBalance, IndexerTeacher, build, set_rounded, set_sparse
from tools.train_demo.schedule import Schedule, Stage

_BOS = 0
# Of the rows. Tests are two thirds of the text, and say less than the library itself.
_SHARES = {"library": 0.5, "tests": 0.38, "chat": 0.12}
_DECAY = 0.1
_MOST_NORM = 1.0
_HELD_OUT_ROWS = 16


class CheckpointError(ValueError):
    """A checkpoint is damaged, or of another model."""


@dataclass(frozen=True, slots=True)
class Run:
    """Where a training reads and writes.

    Args:
        prepared: Folder that ``prepare`` wrote.
        out: Folder of ``log.jsonl``, ``checkpoint.pt`` and, at the end, ``weights.pt``.
        device: Of torch.
        seed: Of weights, rows and order.
        every: Steps from one log line to the next; ten times as many between checkpoints.
        seconds: After which training stops with a checkpoint; None trains to the end.
    """

    prepared: Path
    out: Path
    device: str
    seed: int = 0
    every: int = 50
    seconds: float | None = None


class Rows:
    """Rows of token ids, drawn by step: the same step gives the same rows."""

    def __init__(self, prepared: Path, seed: int) -> None:
        self._streams = [np.load(prepared / f"{name}.npy") for name in _SHARES]
        self._starts = [np.flatnonzero(stream == _BOS) for stream in self._streams]
        self._seed = seed

    def draw(self, step: int, stage: Stage) -> NDArray[np.int64]:
        """``[rows, length + 1]``; half of them begin where a document does."""
        rng = np.random.default_rng((self._seed, step))
        n = stage.length + 1
        rows = []
        for which in rng.choice(len(_SHARES), stage.rows, p=[*_SHARES.values()]):
            stream, starts = self._streams[which], self._starts[which]
            at = int(rng.integers(0, len(stream) - n))
            if rng.random() < 0.5:
                at = int(starts[max(0, np.searchsorted(starts, at, side="right") - 1)])
            rows.append(stream[at : at + n])
        return np.stack(rows).astype(np.int64)


def train(run: Run, schedule: Schedule, say: Callable[[str], None] = print) -> None:
    """Train to the end of the schedule, from the last checkpoint if there is one.

    Raises:
        CheckpointError: the checkpoint cannot be gone on with; nothing has changed.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    run.out.mkdir(parents=True, exist_ok=True)
    model = build(run.prepared, run.seed)
    torch.nn.Module.to(model, run.device)  # in place
    optimizer = _optimizer(model)
    teacher, balance = IndexerTeacher(model), ExpertBalance(model)
    rows = Rows(run.prepared, run.seed)
    step = _resume(run, model, optimizer)
    _forget_lines_after(run.out / "log.jsonl", step)
    begun, tokens = time.monotonic(), 0
    while step < schedule.steps:
        stage = schedule.stage(step)
        set_sparse(model, sparse=stage.sparse)
        set_rounded(model, rounded=stage.rounded)
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        batch = torch.from_numpy(rows.draw(step, stage)).to(run.device)
        loss, divergence = _step(model, optimizer, teacher, batch, stage.rows_at_once)
        busiest = balance.step()
        tokens += stage.rows * stage.length
        step += 1
        if step % run.every == 0 or step == schedule.steps:
            line = {
                "step": step,
                "loss": round(loss.item(), 4),
                "held_out": round(_held_out(model, run, stage.length), 4),
                "indexer": round(divergence.item(), 4),
                "busiest": round(busiest, 2),
                "rate": round(schedule.rate(step - 1), 6),
                "tokens_per_s": round(tokens / (time.monotonic() - begun)),
            }
            with (run.out / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            say(json.dumps(line))
        stopped = run.seconds is not None and time.monotonic() - begun > run.seconds
        if stopped or step % (10 * run.every) == 0:
            _save(run.out / "checkpoint.pt", (step, model.state_dict(), optimizer.state_dict()))
        if stopped:
            return
    _save(run.out / "weights.pt", {name: w.cpu() for name, w in model.state_dict().items()})


def _optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": _DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10)


def _step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    teacher: IndexerTeacher,
    batch: Tensor,
    at_once: int,
) -> tuple[Tensor, Tensor]:
    """One step of the optimizer; the mean losses of the text and of the indexers, in nats."""
    total = torch.zeros(2, device=batch.device)
    parts = batch.split(at_once)
    for part in parts:
        loss = _loss(model, part)
        divergence = teacher.take()
        ((loss + divergence) / len(parts)).backward()
        total += torch.stack([loss.detach(), divergence.detach()]) / len(parts)
    torch.nn.utils.clip_grad_norm_(model.parameters(), _MOST_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total[0], total[1]


def _loss(model: torch.nn.Module, rows: Tensor) -> Tensor:
    logits = model(rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def _held_out(model: torch.nn.Module, run: Run, length: int) -> float:
    """Nats per token on text that is not trained on."""
    ids = np.load(run.prepared / "held_out.npy").astype(np.int64)
    n = min(_HELD_OUT_ROWS * 1024 // length, (len(ids) - 1) // length)
    with torch.no_grad():
        losses = [
            _loss(
                model, torch.from_numpy(ids[None, i * length : (i + 1) * length + 1]).to(run.device)
            )
            for i in range(max(1, n))
        ]
    return float(torch.stack(losses).mean())


def _resume(run: Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    path = run.out / "checkpoint.pt"
    if not path.exists():
        return 0
    try:
        step, weights, state = torch.load(path, map_location=run.device, weights_only=True)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    except OSError:
        raise
    except Exception as error:  # what unpickling damaged bytes raises has no common type
        reason = repr(error).partition("\\n")[0]
        raise CheckpointError(
            f"{path}: must be a checkpoint of this model; got {reason} from reading it"
        ) from error
    return int(step)


def _forget_lines_after(log: Path, step: int) -> None:
    """Steps after the checkpoint are done again, and would be in the log twice."""
    if log.exists():
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))


def _save(path: Path, content: object) -> None:
    """Whole or not at all, so that a stopped run finds its last checkpoint."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(content, unfinished)
    os.replace(unfinished, path)
