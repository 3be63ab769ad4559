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
from analysis.summary_rules import summary_of
from minigpt import records as col

PREFIX = "summary/"
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
        figures: key -> number, of ``SUMMARY_KEYS`` those that the run has, and those
            of a script's own rules.
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
    last, after = int(history.steps[-1]), _first_step(history)
    loss, norm = (
        _column(history, col.TRAIN_LOSS),
        _column(history, col.GRAD_NORM_PRECLIP),
    )
    jump = _Series(above_median(loss.values, rule.window), loss.steps)
    found = {
        FINAL_LOSS: loss.figure(len(loss.values) - 1),
        PEAK_LOSS: loss.largest(after),
        LOSS_JUMP: jump.largest(),
        LARGEST_NORM: norm.largest(after),
        FIRST_NONFINITE: _first_nonfinite(loss, norm),
        LARGEST_RESIDUAL: _residual(history).largest(),
        DUPLICATES: _column(history, col.DUPLICATE_ROWS).largest(),
        FLAGGED: Figure(float(len(flags)), last),
        **logged_figures(history),
    }
    figures = {key: figure for key, figure in found.items() if figure is not None}
    return RunSummary(len(history), figures, flags)


def logged_figures(history: RunHistory) -> dict[str, Figure | None]:
    """The finite numbers that a script's own rules pick, and those that it set.

    A number that was set stands at the last step.
    """
    if not (history.logged and len(history)):
        return {}
    found: dict[str, Figure | None] = {}
    for key, rule in history.logged.rules.items():
        series = _column(history, key)
        picked = summary_of(series.values, series.steps, rule)
        if picked and np.isfinite(picked[0]):
            found[PREFIX + key] = Figure(*picked)
    for key, value in history.logged.summary.items():
        if not isinstance(value, str):
            found[PREFIX + key] = Figure(float(value), int(history.steps[-1]))
    return found


@dataclass(frozen=True, eq=False)
class _Series:
    """Attributes: values, float64, and steps, int64, both of shape (m,)."""

    values: np.ndarray
    steps: np.ndarray

    def largest(self, first: int = 0) -> Figure | None:
        """The largest finite value from step ``first`` on."""
        rows = np.flatnonzero(np.isfinite(self.values) & (self.steps >= first))
        if not len(rows):
            return None
        return self.figure(int(rows[self.values[rows].argmax()]))

    def figure(self, row: int) -> Figure | None:
        """The value of a row, if there is such a row and the value is finite."""
        if not 0 <= row < len(self.values) or not np.isfinite(self.values[row]):
            return None
        return Figure(float(self.values[row]), int(self.steps[row]))


def _first_step(history: RunHistory) -> int:
    """The first step that extremes are taken from."""
    warmup = history.facts.schedule.get("warmup_steps")
    if isinstance(warmup, int | float) and 0 <= warmup <= history.steps[-1]:
        return int(np.ceil(warmup))
    return int(history.steps[len(history) // 10])


def _column(history: RunHistory, name: str) -> _Series:
    """A column where it was measured; nothing if there is none of that name."""
    if not history.has(name):
        return _Series(np.zeros(0), np.zeros(0, np.int64))
    there = history.measured(name)
    return _Series(history.scalar(name)[there], history.steps[there])


def _residual(history: RunHistory) -> _Series:
    """The largest finite residual of each step; NaN where there is none."""
    residual = accounting_residual(history).residual
    finite = np.where(np.isfinite(residual), residual, -np.inf)
    largest = finite.max(axis=1, initial=-np.inf)
    return _Series(np.where(np.isfinite(largest), largest, np.nan), history.steps)


def _first_nonfinite(*columns: _Series) -> Figure | None:
    odd = [one.steps[~np.isfinite(one.values)] for one in columns]
    steps = [int(found[0]) for found in odd if len(found)]
    return Figure(float(min(steps)), min(steps)) if steps else None
