"""A run in a handful of numbers, so that runs can be told apart in one table.

Extremes are taken after the warmup: the loss of an untrained model is the largest of
every run and tells none from another. Where the manifest declares no warmup, and for
a run that ended within it, they are taken from the first tenth of the record on.
The loss jump is how far a loss stands above the median of the 100 before it, which
also tells a spike late in a run. Extremes are the largest *finite* values; that a run
left the finite numbers is said by ``FIRST_NONFINITE`` alone, which a run without such a
step does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analysis.accounting import accounting_residual
from analysis.flags import Flag, find_flags
from analysis.history import RunHistory
from analysis.marks import above_median
from analysis.rule import DEFAULT_RULE, RuleParameters
from minigpt import records as col

FINAL_LOSS = "summary/final_loss"
PEAK_LOSS = "summary/peak_loss"
LOSS_JUMP = "summary/largest_loss_jump"
LARGEST_NORM = "summary/largest_grad_norm"
FIRST_NONFINITE = "summary/first_nonfinite_step"
LARGEST_RESIDUAL = "summary/largest_residual"
DUPLICATES = "summary/most_duplicate_rows"
FLAGGED = "summary/flagged_steps"
SUMMARY_KEYS = (
    FINAL_LOSS,
    PEAK_LOSS,
    LOSS_JUMP,
    LARGEST_NORM,
    FIRST_NONFINITE,
    LARGEST_RESIDUAL,
    DUPLICATES,
    FLAGGED,
)


@dataclass(frozen=True)
class Figure:
    """One number of a summary.

    Attributes:
        value: finite.
        step: where the run had it; for a count, the last step.
    """

    value: float
    step: int


@dataclass(frozen=True)
class RunSummary:
    """What a run came to.

    Attributes:
        steps: recorded.
        figures: key -> number, of ``SUMMARY_KEYS`` those that the run has.
        flags: the steps to look at.
    """

    steps: int = 0
    figures: dict[str, Figure] = field(default_factory=dict)
    flags: tuple[Flag, ...] = ()


def summarise(history: RunHistory, rule: RuleParameters = DEFAULT_RULE) -> RunSummary:
    """The summary of a record, also of one that ended early; empty without a step."""
    if not len(history):
        return RunSummary()
    flags = tuple(find_flags(history, rule))
    last, after = int(history.steps[-1]), _first_row(history)
    loss = _column(history, col.TRAIN_LOSS)
    norm = _column(history, col.GRAD_NORM_PRECLIP)
    found = {
        FINAL_LOSS: _figure(history, loss, len(loss) - 1),
        PEAK_LOSS: _largest(history, loss, after),
        LOSS_JUMP: _largest(history, above_median(loss, rule.window), 0),
        LARGEST_NORM: _largest(history, norm, after),
        FIRST_NONFINITE: _first_nonfinite(history, loss, norm),
        LARGEST_RESIDUAL: _largest(history, _residual(history), 0),
        DUPLICATES: _largest(history, _column(history, col.DUPLICATE_ROWS), 0),
        FLAGGED: Figure(float(len(flags)), last),
    }
    figures = {key: figure for key, figure in found.items() if figure is not None}
    return RunSummary(len(history), figures, flags)


def _first_row(history: RunHistory) -> int:
    """The first row that extremes are taken from."""
    warmup = history.facts.schedule.get("warmup_steps")
    if isinstance(warmup, int | float) and 0 <= warmup <= history.steps[-1]:
        return int(np.searchsorted(history.steps, warmup))
    return len(history) // 10


def _column(history: RunHistory, name: str) -> np.ndarray:
    return history.scalar(name) if history.has(name) else np.zeros(0)


def _residual(history: RunHistory) -> np.ndarray:
    """The largest finite residual of each step; NaN where there is none."""
    residual = accounting_residual(history).residual
    finite = np.where(np.isfinite(residual), residual, -np.inf)
    largest = finite.max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(largest), largest, np.nan)


def _largest(history: RunHistory, values: np.ndarray, first: int) -> Figure | None:
    rows = first + np.flatnonzero(np.isfinite(values[first:]))
    if not len(rows):
        return None
    return _figure(history, values, int(rows[values[rows].argmax()]))


def _figure(history: RunHistory, values: np.ndarray, row: int) -> Figure | None:
    if not 0 <= row < len(values) or not np.isfinite(values[row]):
        return None
    return Figure(float(values[row]), int(history.steps[row]))


def _first_nonfinite(history: RunHistory, *columns: np.ndarray) -> Figure | None:
    rows = [int(np.flatnonzero(~np.isfinite(c))[0]) for c in columns if _odd(c)]
    if not rows:
        return None
    step = int(history.steps[min(rows)])
    return Figure(float(step), step)


def _odd(column: np.ndarray) -> bool:
    return not np.isfinite(column).all()
