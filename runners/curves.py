"""The curves a person looks at in MLflow: which series, and which of their points.

A function of the record alone: fed live while a run trains, or from its closed
record later, it selects the same points with the same timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from analysis.aliases import alias_of
from analysis.blocks import Block, columns_of_block
from analysis.blocks import Columns as BlockColumns
from analysis.ema import RunningEma
from analysis.logged import LOGGED
from analysis.rule import RuleParameters
from analysis.spikes import ShippingRule
from minigpt import records as col
from minigpt.records import RecordLayout

LOSS_EMA = "train/loss_ema"
CURVES = (
    col.TRAIN_LOSS,
    col.LR,
    col.GRAD_NORM_PRECLIP,
    col.GRAD_NORM_POSTCLIP,
    col.UPDATE_NORM,
    col.RELATIVE_UPDATE,
    col.TOKEN_LOSS_P99,
    col.RARE_TOKEN_MAX_COUNT,
    col.DUPLICATE_ROWS,
)
CADENCE_CURVES = (col.VAL_LOSS, col.VAL_LOSS_CAUSAL, col.FUTURE_LEAK)
# Of a watched model; what its script logs is shipped as it is.
OBSERVED_CURVES = (
    col.LR,
    col.GRAD_NORM_PRECLIP,
    col.GRAD_NORM_POSTCLIP,
    col.CLIP_COEF,
    col.UPDATE_NORM,
    col.PARAM_NORM,
    col.RELATIVE_UPDATE,
    col.NONFINITE_GRADS,
)


class Point(NamedTuple):
    """The values of one step that are shipped.

    Attributes:
        step: 0-based.
        timestamp_ms: wall clock of the step, milliseconds since the epoch.
        values: metric key -> value.
    """

    step: int
    timestamp_ms: int
    values: dict[str, float]


class Columns(Protocol):
    """Anything that gives columns by name, such as ``RunHistory``."""

    steps: np.ndarray
    data: BlockColumns

    def scalar(self, name: str) -> np.ndarray:
        """Values of a column, shape (n,)."""

    def measured(self, name: str) -> np.ndarray:
        """bool, shape (n,), where an occasional column has a value."""


class CurveSelector:
    """Feeds the shipping rule and hands out the points that it decides to ship."""

    def __init__(self, rule: RuleParameters) -> None:
        self._rule = ShippingRule(rule)
        self._lead = rule.lead
        self._ema = RunningEma()
        self._waiting: dict[int, Point] = {}
        self.next_step = 0

    def feed(self, columns: Columns) -> list[Point]:
        """Take the next steps.

        Args:
            columns: rows of which those before ``next_step`` are passed over.

        Returns:
            Points now decided to be shipped, in the order of their steps.
        """
        rows = np.flatnonzero(columns.steps >= self.next_step)
        series = {name: columns.scalar(name)[rows].tolist() for name in CURVES}
        walls = columns.scalar(col.TIME_WALL)[rows].tolist()
        cadence = {
            name: (
                columns.measured(name)[rows].tolist(),
                columns.scalar(name)[rows].tolist(),
            )
            for name in CADENCE_CURVES
        }
        decided: list[Point] = []
        for row, step in enumerate(columns.steps[rows].tolist()):
            values = {name: values[row] for name, values in series.items()}
            values[LOSS_EMA] = self._ema.update(values[col.TRAIN_LOSS])
            found = {n: v[row] for n, (mask, v) in cadence.items() if mask[row]}
            point = Point(step, int(walls[row] * 1000), values | found)
            decided += self._push(point, bool(found))
        return decided

    def _push(self, point: Point, has_cadence: bool) -> list[Point]:
        self._waiting[point.step] = point
        self.next_step = point.step + 1
        values = point.values
        steps = self._rule.push(
            point.step,
            values[col.TRAIN_LOSS],
            values[col.GRAD_NORM_PRECLIP],
            has_cadence,
        )
        decided = [self._waiting[step] for step in steps]
        self._waiting.pop(point.step - self._lead, None)
        return decided

    def finish(self, finished: bool) -> list[Point]:
        """The record has ended: the points still undecided.

        Args:
            finished: whether the run is; see ``ShippingRule.finish``.
        """
        return [self._waiting[step] for step in self._rule.finish(finished)]


class LoggedSelector:
    """The points of a run that a script logged.

    All that the script logged is shipped, at its step and with the time of its row.
    What the observer measured at every update is thinned by the shipping rule, which
    counts rows and not steps.
    """

    def __init__(self, rule: RuleParameters) -> None:
        self._rule, self._lead = ShippingRule(rule), rule.lead
        self._waiting: dict[int, Point] = {}  # by the number of their row
        self._rows = 0
        self._last = -1

    def feed(self, columns: Columns) -> list[Point]:
        """Take the next rows; see ``CurveSelector.feed``."""
        data = columns.data
        new = np.flatnonzero(data.steps > self._last)
        if not len(new):
            return []
        steps = data.steps[new].tolist()
        times = [int(wall * 1000) for wall in data.flat[col.TIME_WALL][new].tolist()]
        points: list[Point] = []
        logged = self._logged(data, new)
        observed = self._observed(data, new)
        loss = alias_of(col.TRAIN_LOSS, data.layout.occasional)
        for row, (step, time) in enumerate(zip(steps, times, strict=True)):
            if logged[row]:
                points.append(Point(step, time, logged[row]))
            if observed:
                point = Point(step, time, observed[row])
                points += self._push(point, logged[row].get(loss))
        self._last = steps[-1]
        return points

    @staticmethod
    def _logged(data: BlockColumns, rows: np.ndarray) -> list[dict[str, float]]:
        """What the script logged at each of the rows."""
        found: list[dict[str, float]] = [{} for _ in rows]
        for key in data.layout.occasional:
            values = data.flat[key][rows].tolist()
            for row in np.flatnonzero(data.measured[key][rows]).tolist():
                found[row][key] = values[row]
        return found

    @staticmethod
    def _observed(data: BlockColumns, rows: np.ndarray) -> list[dict[str, float]]:
        """The observer's curves at each of the rows, empty where there was no update.

        Nothing at all if no model was watched.
        """
        if col.STEP_SKIPPED not in data.layout.scalars:
            return []
        values = [data.flat[name][rows].tolist() for name in OBSERVED_CURVES]
        skipped = data.flat[col.STEP_SKIPPED][rows].tolist()
        return [
            {} if skip else dict(zip(OBSERVED_CURVES, figures, strict=True))
            for skip, *figures in zip(skipped, *values, strict=True)
        ]

    def _push(self, point: Point, loss: float | None) -> list[Point]:
        self._waiting[self._rows] = point
        norm = point.values.get(col.GRAD_NORM_PRECLIP)
        decided = self._decided(self._rule.push(self._rows, loss, norm, False))
        self._waiting.pop(self._rows - self._lead, None)
        self._rows += 1
        return decided

    def finish(self, finished: bool) -> list[Point]:
        """See ``CurveSelector.finish``."""
        return self._decided(self._rule.finish(finished))

    def _decided(self, rows: list[int]) -> list[Point]:
        points = [self._waiting[row] for row in rows]
        return [point for point in points if point.values]


def selector_for(manifest: dict[str, Any]) -> CurveSelector | LoggedSelector:
    """What chooses the points of the run that a manifest describes.

    Raises:
        InputError: the manifest's shipping rule is not one.
    """
    rule = RuleParameters.from_json(manifest["shipping_rule"])
    return (
        LoggedSelector(rule) if manifest.get("kind") == LOGGED else CurveSelector(rule)
    )


def journal_rows(layout: RecordLayout, block: Block) -> Columns:
    """The records of a journal's block, as a selector reads them."""
    return _Rows(columns_of_block(layout, block))


@dataclass(frozen=True)
class _Rows:
    """Columns of a journal's block in the shape of ``Columns``."""

    data: BlockColumns

    @property
    def steps(self) -> np.ndarray:
        return self.data.steps

    def scalar(self, name: str) -> np.ndarray:
        return self.data.flat[name]

    def measured(self, name: str) -> np.ndarray:
        return self.data.measured[name]
