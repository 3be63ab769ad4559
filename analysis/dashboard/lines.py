"""What a chart draws: lines, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.dashboard.heat import Heat
from analysis.ema import ema
from analysis.history import RunHistory
from minigpt import records as col

MAX_LINES = 64
AS_LOGGED = "as logged"  # the unit of what a script logged
SPARSE = 0.2  # a column measured at fewer of its steps is one of now and then


class Absent(Exception):
    """A chart has nothing to draw; the message says why."""


@dataclass(frozen=True, eq=False)
class Line:
    """One line of one chart.

    Attributes:
        label: what a reader calls it.
        rows: int64, shape (m,), rows of the record, increasing.
        values: float, shape (m,).
        dashed: a line that stands behind the solid one of the same thing.
        sparse: measured now and then: every value is a dot, and holds until the next.
    """

    label: str
    rows: np.ndarray
    values: np.ndarray
    dashed: bool = False
    sparse: bool = False


Builder = Callable[[RunHistory], list[Line]]


@dataclass(frozen=True)
class Chart:
    """One chart of a panel.

    Attributes:
        key: short name, unique on the page.
        title: of the chart.
        unit: of its vertical axis.
        build: the lines of one run; raises Absent.
        scale: "linear" or "log".
        floor: on a log scale, where smaller values and 0 are drawn.
        span: values that the vertical axis shows in any case.
        alone: labels of the lines that a page of several runs draws, each in a chart
            of its own; empty for the largest of all lines.
        rulers: heights of dotted lines, which the note explains.
        note: a measured sentence below the chart; empty for none.
        heat: histograms that are drawn below the lines; None for none.
    """

    key: str
    title: str
    unit: str
    build: Builder
    scale: str = "linear"
    floor: float | None = None
    span: tuple[float, float] | None = None
    alone: tuple[str, ...] = ()
    rulers: Callable[[RunHistory], list[float]] = lambda run: []
    note: Callable[[RunHistory], str] = lambda run: ""
    heat: Callable[[RunHistory], Heat] | None = None


@dataclass(frozen=True)
class Panel:
    """One panel: a question, and the charts that answer it.

    Attributes:
        number: "1" to "7", or a letter.
        title: of the panel.
        conclusion: what a reader should conclude from it.
        charts: from top to bottom.
        note: what the panel leaves out; empty if nothing.
    """

    number: str
    title: str
    conclusion: str
    charts: tuple[Chart, ...] = field(default=())
    note: str = ""


def column(run: RunHistory, name: str, label: str, **style: bool) -> Line:
    """A recorded column; an occasional one at the steps where it was measured.

    Raises:
        Absent: the record has no such column, or no value of it.
    """
    if not run.has(name):
        raise Absent(f"the record has no column {name}")
    if not len(run):
        raise Absent("the record has no steps")
    measured = run.measured(name)
    rows = np.flatnonzero(measured)
    if not len(rows):
        raise Absent(f"{name} was not measured in these {len(run)} steps")
    sparse = len(rows) < SPARSE * len(run)
    return Line(label, rows, run.scalar(name)[rows], sparse=sparse, **style)


def columns(
    run: RunHistory, named: Sequence[tuple[str, str]], dashed: Sequence[str] = ()
) -> list[Line]:
    """Those of these columns that there are: (name, label).

    Raises:
        Absent: there is none of them.
    """
    lines, reasons = [], []
    for name, label in named:
        try:
            lines.append(column(run, name, label, dashed=label in dashed))
        except Absent as absent:
            reasons.append(str(absent))
    if not lines:
        raise Absent("; ".join(dict.fromkeys(reasons)))
    return lines


def family(run: RunHistory, prefix: str) -> list[Line]:
    """A line for every column of this prefix, labelled with the rest of its name.

    Raises:
        Absent: there is none.
    """
    names = [name for name in run.data.flat if name.startswith(prefix)]
    if not names:
        raise Absent(f"the record has no column {prefix}*")
    if len(run) and not any(run.measured(name).any() for name in names):
        raise Absent(f"{prefix}* was not measured in these {len(run)} steps")
    named = [(name, name.removeprefix(prefix)) for name in names]
    return liveliest(columns(run, named))


def per_tensor(
    run: RunHistory,
    prefixes: Sequence[str],
    combine: Callable[..., np.ndarray],
    common: Sequence[str] = (),
) -> list[Line]:
    """A line a parameter tensor, computed from its columns.

    Args:
        run: the record.
        prefixes: of the columns that are needed.
        combine: their values -> the values drawn; NaN where there is none.
        common: columns of the whole model, whose values follow those of the tensor.

    Raises:
        Absent: no tensor has all of the columns.
    """
    if not len(run):
        raise Absent("the record has no steps")
    lines = []
    for tensor in run.tensors:
        names = [*(prefix + tensor for prefix in prefixes), *common]
        if all(map(run.has, names)):
            rows = np.flatnonzero(np.all([run.measured(name) for name in names], 0))
            with np.errstate(all="ignore"):
                values = combine(*(run.scalar(name)[rows] for name in names))
            lines.append(Line(tensor, rows, values))
    lines = [line for line in lines if len(line.rows)]
    if not lines:
        wanted = " and ".join(f"{prefix}*" for prefix in prefixes)
        raise Absent(f"no tensor has the columns {wanted}")
    return liveliest(lines)


def liveliest(lines: list[Line]) -> list[Line]:
    """All lines, or the ``MAX_LINES`` that once stray furthest from their medians."""
    if len(lines) <= MAX_LINES:
        return lines
    ranked = sorted(range(len(lines)), key=lambda i: -_stray(lines[i].values))
    return [lines[index] for index in sorted(ranked[:MAX_LINES])]


def _stray(values: np.ndarray) -> float:
    """Largest distance from the median on a log scale; infinite with a NaN."""
    if not np.isfinite(values).all():
        return np.inf
    with np.errstate(all="ignore"):
        size = np.log(np.maximum(np.abs(values), 1e-30))
    return float(np.abs(size - np.median(size)).max())


def loss_lines(run: RunHistory) -> list[Line]:
    """Training loss, its EMA and the two validation losses."""
    train = column(run, col.TRAIN_LOSS, "train")
    average = Line("EMA-50", train.rows, ema(train.values))
    named = [(col.VAL_LOSS, "val"), (col.VAL_LOSS_CAUSAL, "val, causal mask")]
    lines = [train, average]
    for name, label in named:
        try:
            lines.append(column(run, name, label, dashed=label != "val"))
        except Absent:
            pass  # the chart's note says which are missing
    return lines
