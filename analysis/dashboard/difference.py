"""How far the loss of one run lies above that of another, step by step."""

from __future__ import annotations

import numpy as np

from analysis.dashboard.lines import Absent, Chart, Line, column
from analysis.history import RunHistory
from minigpt.records import TRAIN_LOSS


def loss_difference(first: RunHistory) -> Chart:
    """A chart of a run's training loss minus that of ``first``.

    Two curves that differ by less than the noise between batches lie on each other;
    their difference does not.
    """
    label = f"minus that of {first.name}"

    def build(run: RunHistory) -> list[Line]:
        if run is first:
            raise Absent("the others are compared with it")
        steps, mine, theirs = np.intersect1d(
            run.steps, first.steps, assume_unique=True, return_indices=True
        )
        if not len(steps):
            raise Absent(f"it has no step in common with {first.name}")
        for one in (run, first):
            column(one, TRAIN_LOSS, label)  # says why there is none
        both = run.measured(TRAIN_LOSS)[mine] & first.measured(TRAIN_LOSS)[theirs]
        mine, theirs = mine[both], theirs[both]
        if not len(mine):
            raise Absent(f"no loss at a step in common with {first.name}")
        with np.errstate(invalid="ignore"):  # inf - inf
            apart = run.scalar(TRAIN_LOSS)[mine] - first.scalar(TRAIN_LOSS)[theirs]
        return [Line(label, mine, apart)]

    return Chart("difference", "Training loss", "nats per token", build, alone=(label,))
