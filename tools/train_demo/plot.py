"""The loss of a training as a picture."""

import json
from pathlib import Path

from matplotlib import pyplot

from tools.train_demo.schedule import Schedule


def plot(log: Path, out: Path, schedule: Schedule) -> None:
    """Draw the losses in ``log.jsonl``, with a line where each stage begins."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line["step"] for line in lines]
    figure, left = pyplot.subplots(figsize=(7.5, 4), layout="constrained")
    right = left.twinx()
    left.plot(steps, [line["loss"] for line in lines], "C0", label="trained text")
    left.plot(steps, [line["held_out"] for line in lines], "C1", label="held-out text")
    right.plot(steps, [line["indexer"] for line in lines], "C2:", label="indexer")
    begun = 0
    for stage in schedule.stages[:-1]:
        begun += stage.steps
        left.axvline(begun, color="0.8", linewidth=1)
    left.set(xlabel="step", ylabel="nats per token", ylim=(0, 5))
    right.set(ylabel="divergence of the indexer, nats", ylim=(0, 0.1))
    figure.legend(loc="upper right", bbox_to_anchor=(0.88, 0.6))
    pyplot.rcParams["svg.hashsalt"] = "demo"  # equal logs, equal pictures
    figure.savefig(out, metadata={"Date": None})
