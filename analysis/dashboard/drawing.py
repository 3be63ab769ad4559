"""Lines and charts as the page's JSON, their numbers packed into the payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.dashboard.grid import Grid, make_grid
from analysis.dashboard.heat import PARTS, Heat
from analysis.dashboard.lines import AS_LOGGED, Absent, Chart, Line
from analysis.dashboard.payload import Payload
from analysis.history import RunHistory
from minigpt import records as col

MAX_VALUES = 900_000  # of a page, which keeps it below 6 MB
MAX_COLUMNS = 2000  # of the histogram; a screen has no more
FEW = 4  # lines of a baseline drawn one by one; more are drawn as their range
PER_TENSOR_CHARTS = 5


@dataclass(frozen=True, eq=False)
class Sheet:
    """One run on a page, and how much of it the page holds.

    Attributes:
        run: the record.
        index: its number on the page.
        keep: rows around which nothing is thinned.
        cells: how many cells a line may have.
        payload: of the page.
        grids: grids that are packed already, by the bytes of their rows.
    """

    run: RunHistory
    index: int
    keep: list[int]
    cells: int
    payload: Payload
    grids: dict[bytes, tuple[Grid, dict[str, int]]]

    def grid(self, rows: np.ndarray) -> tuple[Grid, dict[str, int]]:
        """The cells of a line with a value at each of these rows."""
        key = rows.tobytes()
        if key not in self.grids:
            keep = np.searchsorted(rows, self.keep).tolist()
            keep = [place for place in keep if place < len(rows)]
            grid, steps = make_grid(len(rows), self.cells, keep), self.run.steps[rows]
            packed = {"first": self.payload.integers(steps[grid.first])}
            if not grid.exact:
                packed["last"] = self.payload.integers(steps[grid.last])
            self.grids[key] = grid, packed
        return self.grids[key]


def make_sheet(
    run: RunHistory, index: int, keep: list[int], lines: int, payload: Payload
) -> Sheet:
    """A sheet that shares the page's budget.

    Args:
        run: the record.
        index: its number on the page.
        keep: rows around which nothing is thinned.
        lines: about how many lines of this length the whole page will have.
        payload: of the page.
    """
    exact = lines * len(run) <= MAX_VALUES
    cells = len(run) if exact else max(100, MAX_VALUES // (2 * lines))
    return Sheet(run, index, keep, cells, payload, {})


def pack_line(sheet: Sheet, line: Line, **style: Any) -> dict[str, Any]:
    """A line as JSON: its label and style, and where its numbers are."""
    grid, steps = sheet.grid(line.rows)
    reduced = grid.reduce(np.asarray(line.values, np.float64))
    packed = {
        "label": line.label,
        "run": sheet.index,
        "dashed": line.dashed,
        "sparse": line.sparse,
        "grid": steps,
        "start": sheet.payload.floats(reduced.start),
    }
    if not grid.exact:
        packed["end"] = sheet.payload.floats(reduced.end)
    if len(reduced.odd):
        packed["odd"] = sheet.payload.integers(reduced.odd)
        packed["odd_values"] = sheet.payload.floats(reduced.odd_values)
    return packed | style


def describe_chart(chart: Chart) -> dict[str, Any]:
    """What a chart is, without its lines."""
    return {
        "key": chart.key,
        "title": chart.title,
        "unit": chart.unit,
        "scale": chart.scale,
        "floor": chart.floor,
        "span": chart.span,
        "rulers": [],
        "notes": [],
        "lines": [],
        "absent": "",
    }


def run_chart(chart: Chart, sheet: Sheet, baseline: Sheet | None) -> dict[str, Any]:
    """A chart of one run, with its baseline below in grey."""
    packed = describe_chart(chart)
    if sheet.run.logged and chart.key == "loss":
        packed["unit"] = AS_LOGGED  # a script's loss may be anything
    try:
        lines = chart.build(sheet.run)
    except Absent as absent:
        return packed | {"absent": str(absent)}
    if baseline is not None:
        packed["lines"] += _baseline_lines(chart, baseline, packed["notes"])
    packed["lines"] += [pack_line(sheet, line) for line in lines]
    packed["rulers"] = chart.rulers(sheet.run)
    packed["notes"] += [chart.note(sheet.run), *_odd_notes(sheet.run, lines)]
    if chart.key == "histogram":
        packed["histogram"] = pack_histogram(sheet)
    if chart.heat is not None:
        packed["histogram"] = pack_heat(sheet, chart.heat(sheet.run))
    packed["notes"] = [note for note in packed["notes"] if note]
    return packed


def _baseline_lines(
    chart: Chart, baseline: Sheet, notes: list[str]
) -> list[dict[str, Any]]:
    try:
        lines = chart.build(baseline.run)
    except Absent as absent:
        notes.append(f"Baseline: {absent}.")
        return []
    if len(lines) > FEW:
        lines = extremes(lines)
    named = [replace(line, label=f"baseline: {line.label}") for line in lines]
    return [pack_line(baseline, line, grey=True) for line in named]


def extremes(lines: Sequence[Line]) -> list[Line]:
    """The largest and the smallest of many lines, at each row that one of them has."""
    rows = np.unique(np.concatenate([line.rows for line in lines]))
    high, low = np.full((2, len(rows)), np.nan)
    for line in lines:
        places = np.searchsorted(rows, line.rows)
        high[places] = np.fmax(high[places], line.values)
        low[places] = np.fmin(low[places], line.values)
    sparse = all(line.sparse for line in lines)
    return [
        Line("largest", rows, high, sparse=sparse),
        Line("smallest", rows, low, dashed=True, sparse=sparse),
    ]


def _odd_notes(run: RunHistory, lines: Sequence[Line]) -> list[str]:
    """From which step on which lines are not finite."""
    firsts: dict[int, list[str]] = {}
    for line in lines:
        odd = np.flatnonzero(~np.isfinite(line.values))
        if len(odd):
            step = int(run.steps[line.rows[odd[0]]])
            firsts.setdefault(step, []).append(line.label)
    return [
        f"Not finite (the bar along the upper edge) first at step {step:,}: "
        f"{_some(labels)}."
        for step, labels in sorted(firsts.items())
    ]


def _some(labels: Sequence[str], most: int = 3) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more


def pack_histogram(sheet: Sheet) -> dict[str, Any]:
    """Token counts of each loss bin, summed over the steps of a cell."""
    run = sheet.run
    if not run.has(col.TOKEN_LOSS_HISTOGRAM):
        return {"absent": f"The record has no column {col.TOKEN_LOSS_HISTOGRAM}."}
    values, offsets = run.array(col.TOKEN_LOSS_HISTOGRAM)
    bins = len(col.HISTOGRAM_EDGES) + 1
    countable = values.dtype.kind in "ui" and int(values.min(initial=0)) >= 0
    whole = len(values) == bins * len(run) and np.all(np.diff(offsets) == bins)
    if not (countable and whole):
        return {"absent": f"Not every step has the {bins} bins of a histogram."}
    grid = make_grid(len(run), MAX_COLUMNS, sheet.keep)
    counts = values.reshape(-1, bins)
    if not grid.exact:
        counts = np.add.reduceat(counts.astype(np.uint32), grid.first, axis=0)
    width = float(col.HISTOGRAM_EDGES[1] - col.HISTOGRAM_EDGES[0])
    return {
        "bins": bins,
        "low": 0.0,
        "width": width,
        "peak": 1.0,
        "darkest": 1.0,
        "first": sheet.payload.integers(run.steps[grid.first]),
        "last": sheet.payload.integers(run.steps[grid.last]),
        "counts": sheet.payload.integers(counts.ravel()),
    }


def pack_heat(sheet: Sheet, heat: Heat) -> dict[str, Any]:
    """Logged histograms; each is drawn until the step of the next one.

    Of more than a page has columns for, the first of each cell is drawn. The bin with
    the largest part of its step is the darkest: many bins have a small part each.
    """
    every = max(1, -(-len(heat.rows) // MAX_COLUMNS))
    first = sheet.run.steps[heat.rows[::every]]
    usual = int(np.median(np.diff(first))) if len(first) > 1 else 1
    end = min(int(first[-1]) + usual - 1, max(int(sheet.run.steps[-1]), int(first[-1])))
    return {
        "bins": heat.parts.shape[1],
        "low": heat.low,
        "width": heat.width,
        "peak": max(int(heat.parts.max()), 1) / PARTS,
        "darkest": 0.6,  # the line lies in the middle of it and is to be seen
        "first": sheet.payload.integers(first),
        "last": sheet.payload.integers(np.append(first[1:] - 1, end)),
        "counts": sheet.payload.integers(heat.parts[::every].ravel()),
    }


def overlay_charts(chart: Chart, sheets: Sequence[Sheet]) -> list[dict[str, Any]]:
    """Charts with one line a run: one chart for each label that stands alone."""
    built: list[tuple[Sheet, list[Line] | None, str]] = []
    for sheet in sheets:
        try:
            built.append((sheet, chart.build(sheet.run), ""))
        except Absent as absent:
            built.append((sheet, None, str(absent)))
    return [
        _overlay(chart, label, number, built)
        for number, label in enumerate(chart.alone or ("",))
    ]


def _overlay(
    chart: Chart,
    label: str,
    number: int,
    built: Sequence[tuple[Sheet, list[Line] | None, str]],
) -> dict[str, Any]:
    packed = describe_chart(chart)
    packed["key"] = f"{chart.key}-{number}"
    packed["title"] += f": {label}" if label else ": the largest"
    for sheet, lines, absent in built:
        line = _standing(lines, label) if lines else None
        if line is None:
            reason = absent or f"nothing called {label}"
            packed["notes"].append(f"{sheet.run.name}: {reason}.")
        else:
            shown = replace(line, label=sheet.run.name, dashed=False)
            packed["lines"].append(pack_line(sheet, shown))
    if not packed["lines"]:
        packed["absent"] = " ".join(packed["notes"]).removesuffix(".")
        packed["notes"] = []
    return packed


def _standing(lines: Sequence[Line], label: str) -> Line | None:
    """The line of this label, or without one the largest of all."""
    if label:
        return next((line for line in lines if line.label == label), None)
    return extremes(lines)[0]
