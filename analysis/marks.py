"""The step detector over a whole run, at the speed of arrays.

A step can only be marked if the median and MAD of the ``window`` values before it,
none of them marked, say so. Where no step was marked for that long these are plain
rolling figures: arrays find the few steps in question, and the detector itself, with
its exact state, judges those and all that follow until it has seen a whole window
without a mark.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from analysis.rule import DEFAULT_RULE, RuleParameters
from analysis.spikes import MAD_TO_SIGMA, TINY_NORM, Mark, StepDetector

_CHUNK = 20_000  # windows at a time, 16 MB of them
# np.log and math.log may differ in the last bit; the detector judges what is close.
_CLOSE = 1 - 1e-9


def find_marks(
    losses: Iterable[float],
    norms: Iterable[float] | None,
    steps: Iterable[int] | None = None,
    rule: RuleParameters = DEFAULT_RULE,
    loss_rows: np.ndarray | None = None,
    norm_rows: np.ndarray | None = None,
) -> list[Mark]:
    """All marks of a whole run: those of ``StepDetector``, step after step.

    Args:
        losses: raw loss of each step, nats per token.
        norms: gradient norm of each step before clipping, or None.
        steps: their numbers, by default 0, 1, 2, ...
        rule: the detector's numbers.
        loss_rows: bool, shape (n,), where the loss was recorded; by default everywhere.
        norm_rows: the same of the norm.
    """
    loss = _Series(losses, loss_rows)
    nowhere = np.zeros(len(loss), bool)
    norm = _Series(nowhere, nowhere) if norms is None else _Series(norms, norm_rows)
    number = np.arange(len(loss)) if steps is None else np.asarray(steps)
    suspects = np.flatnonzero(_suspects(loss, norm, rule))
    marks: list[Mark] = []
    row = 0
    while row < len(loss):
        row = _judge(loss, norm, number, row, rule, marks)
        later = suspects[np.searchsorted(suspects, row) :]
        row = int(later[0]) if len(later) else len(loss)
    return marks


class _Series:
    """Values of which some were recorded.

    Attributes:
        values: float64, shape (n,).
        there: bool, shape (n,).
        before: int64, shape (n + 1,): how many were recorded before each row.
    """

    def __init__(self, values: Iterable[float], there: np.ndarray | None) -> None:
        self.values = np.asarray(values, np.float64)
        everywhere = np.ones(len(self.values), bool)
        self.there = everywhere if there is None else there
        self.before = np.concatenate([[0], np.cumsum(self.there)])

    def __len__(self) -> int:
        return len(self.values)

    def at(self, row: int) -> float | None:
        return float(self.values[row]) if self.there[row] else None

    def back(self, row: int, count: int) -> int:
        """The row from which on so many were recorded before ``row``."""
        wanted = max(0, int(self.before[row]) - count)
        return int(np.searchsorted(self.before, wanted, side="right")) - 1

    def since(self, start: int, row: int) -> int:
        """How many were recorded from ``start`` until before ``row``."""
        return int(self.before[row] - self.before[start])


def _judge(
    loss: _Series,
    norm: _Series,
    number: np.ndarray,
    row: int,
    rule: RuleParameters,
    marks: list[Mark],
) -> int:
    """Let the detector judge from ``row`` on; the row up to which it has."""
    detector, quiet = StepDetector(rule), row
    series = [one for one in (loss, norm) if one.before[-1]]
    begin = min((one.back(row, rule.window) for one in series), default=row)
    for earlier in range(begin, row):
        detector.prime(int(number[earlier]), loss.at(earlier), norm.at(earlier))
    while row < len(loss):
        if all(one.since(quiet, row) >= rule.window for one in series):
            break  # no baseline knows of a mark any more
        mark = detector.update(int(number[row]), loss.at(row), norm.at(row))
        row += 1
        if mark:
            marks.append(mark)
            quiet = row
    return row


def _suspects(loss: _Series, norm: _Series, rule: RuleParameters) -> np.ndarray:
    """bool, shape (n,): steps that the detector might mark after a quiet window."""
    found = np.zeros(len(loss), bool)
    relative = rule.loss_relative_floor
    found[loss.there] = _stands_out(
        loss.values[loss.there], rule, rule.loss_z, rule.loss_floor, relative
    )
    sizes = norm.values[norm.there]
    with np.errstate(invalid="ignore"):
        logs = np.log(np.maximum(sizes, TINY_NORM))
    odd = _stands_out(logs, rule, rule.norm_z, rule.norm_floor, 0.0)
    found[norm.there] |= odd | ~np.isfinite(sizes)  # a norm of -inf has a size
    return found


def _stands_out(
    values: np.ndarray, rule: RuleParameters, limit: float, floor: float, part: float
) -> np.ndarray:
    found = ~np.isfinite(values)
    windows = max(0, len(values) - rule.window)
    for start in range(0, windows, _CHUNK):
        stop = min(start + _CHUNK, windows)
        before = sliding_window_view(
            values[start : stop + rule.window - 1], rule.window
        )
        present = values[start + rule.window : stop + rule.window]
        # Values near the largest double overflow to inf here as in the detector.
        with np.errstate(invalid="ignore", over="ignore"):
            center = _median(before)
            sigma = np.maximum(floor, part * np.abs(center))
            rows = np.flatnonzero(present - center > limit * sigma * _CLOSE)
            mad = _median(np.abs(before[rows] - center[rows, None]))
            sigma = np.maximum(MAD_TO_SIGMA * mad, sigma[rows])
            tall = (present - center)[rows] > limit * sigma * _CLOSE
        found[start + rule.window + rows[tall]] = True
    return found


def above_median(values: np.ndarray, window: int) -> np.ndarray:
    """How far each value stands above the median of the ``window`` values before it.

    Args:
        values: shape (n,).
        window: at least 1.

    Returns:
        float64, shape (n,); NaN for the first ``window`` values, and where one of the
        values concerned is not finite.
    """
    above = np.full(len(values), np.nan)
    known = np.where(np.isfinite(values), values, np.nan)
    for start in range(0, len(values) - window, _CHUNK):
        stop = min(start + _CHUNK, len(values) - window)
        before = sliding_window_view(known[start : stop + window - 1], window)
        whole = ~np.isnan(before).any(axis=1)
        center = np.where(whole, _median(before), np.nan)
        above[start + window : stop + window] = known[start + window :][: len(center)]
        above[start + window : stop + window] -= center
    return above


def _median(rows: np.ndarray) -> np.ndarray:
    """Median of each row, shape (rows,)."""
    half = rows.shape[1] // 2
    low = half if rows.shape[1] % 2 else half - 1
    ordered = np.partition(rows, (low, half), axis=1)
    return (ordered[:, low] + ordered[:, half]) / 2
