"""How long and on what the demo model is trained."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of steps on rows of one length.

    Args:
        steps: Of the optimizer.
        length: Tokens of a row.
        rows: Of a step.
        rows_at_once: Rows whose activations are in memory together.
        sparse: Whether attention reads the selected rows alone. An indexer that selects before
            it has learnt hides from attention what it should learn from.
        rounded: Whether the experts are rounded to MXFP4 in the forward pass.
    """

    steps: int
    length: int
    rows: int
    rows_at_once: int
    sparse: bool
    rounded: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """All stages, and how fast to learn.

    Args:
        stages: In order.
        peak: Learning rate after ``warm_up`` steps; it falls as a cosine to ``least`` of it.
        warm_up: Steps.
        least: Share of the peak at the end.
    """

    stages: tuple[Stage, ...]
    peak: float = 2e-3
    warm_up: int = 150
    least: float = 0.02

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        raise IndexError(f"step must be below {self.steps}")

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.peak * (self.least + (1 - self.least) * 0.5 * (1 + math.cos(math.pi * done)))


# Activations of 4,096 tokens take 6 to 8 GB.
CPU_TOKENS = 4096


def full_schedule(scale: float = 1.0, most_tokens: int | None = None) -> Schedule:
    """The schedule of the model that ships: some minutes of a data-centre GPU.

    Args:
        scale: Of the number of steps; less is sooner and worse.
        most_tokens: Whose activations are in memory together, though never less than a row's;
            None is what a data-centre GPU holds.
    """

    def stage(steps: int, length: int, rows: int, at_once: int, *, late: bool) -> Stage:
        if most_tokens is not None:
            at_once = min(at_once, max(1, most_tokens // length))
        return Stage(max(1, round(steps * scale)), length, rows, at_once, late, late)

    return Schedule(
        (
            stage(1900, 1024, 32, 32, late=False),
            stage(500, 1024, 32, 32, late=True),
            stage(120, 4096, 8, 2, late=True),
        ),
        warm_up=max(1, round(150 * scale)),
    )
