"""The curves a person looks at in MLflow: which series, and which of their points.

A function of the record alone: fed live while a run trains, or from its closed
record later, it selects the same points with the same timestamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from analysis.blocks import Block, columns_of_block
from analysis.blocks import Columns as BlockColumns
from analysis.ema import RunningEma
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


def selector_for(manifest: dict[str, Any]) -> CurveSelector:
    """What chooses the points of the run that a manifest describes.

    Raises:
        InputError: the manifest's shipping rule is not one.
    """
    return CurveSelector(RuleParameters.from_json(manifest["shipping_rule"]))


def journal_rows(layout: RecordLayout, block: Block) -> Columns:
    """The records of a journal's block, as a selector reads them."""
    return _Rows(columns_of_block(layout, block))


@dataclass(frozen=True)
class _Rows:
    """Columns of a journal's block in the shape of ``Columns``."""

    columns: BlockColumns

    @property
    def steps(self) -> np.ndarray:
        return self.columns.steps

    def scalar(self, name: str) -> np.ndarray:
        return self.columns.flat[name]

    def measured(self, name: str) -> np.ndarray:
        return self.columns.measured[name]
