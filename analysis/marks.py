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
) -> list[Mark]:
    """All marks of a whole run: those of ``StepDetector``, step after step.

    Args:
        losses: raw loss of each step, nats per token.
        norms: gradient norm of each step before clipping, or None.
        steps: their numbers, by default 0, 1, 2, ...
        rule: the detector's numbers.
    """
    loss = np.asarray(losses, np.float64)
    norm = None if norms is None else np.asarray(norms, np.float64)
    number = np.arange(len(loss)) if steps is None else np.asarray(steps)
    suspects = np.flatnonzero(_suspects(loss, norm, rule))
    marks: list[Mark] = []
    row = 0
    while row < len(loss):
        row = _judge(loss, norm, number, row, rule, marks)
        later = suspects[np.searchsorted(suspects, row) :]
        row = int(later[0]) if len(later) else len(loss)
    return marks


def _judge(
    loss: np.ndarray,
    norm: np.ndarray | None,
    number: np.ndarray,
    row: int,
    rule: RuleParameters,
    marks: list[Mark],
) -> int:
    """Let the detector judge from ``row`` on; the row up to which it has."""
    detector, quiet = StepDetector(rule), 0
    ordinary = range(max(0, row - rule.window), row)

    def at(one: int) -> tuple[int, float, float | None]:
        size = None if norm is None else float(norm[one])
        return int(number[one]), float(loss[one]), size

    for earlier in ordinary:
        detector.prime(*at(earlier))
    while row < len(loss) and quiet < rule.window:
        mark = detector.update(*at(row))
        quiet = 0 if mark else quiet + 1
        if mark:
            marks.append(mark)
        row += 1
    return row


def _suspects(
    loss: np.ndarray, norm: np.ndarray | None, rule: RuleParameters
) -> np.ndarray:
    """bool, shape (n,): steps that the detector might mark after a quiet window."""
    relative = rule.loss_relative_floor
    found = _stands_out(loss, rule, rule.loss_z, rule.loss_floor, relative)
    if norm is not None:
        with np.errstate(invalid="ignore"):
            size = np.log(np.maximum(norm, TINY_NORM))
        found |= _stands_out(size, rule, rule.norm_z, rule.norm_floor, 0.0)
        found |= ~np.isfinite(norm)  # a norm of -inf has a size
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
