"""Lines, baselines, histograms and overlays as JSON, against the record itself."""

import math

import numpy as np
import pytest

from analysis.dashboard import drawing
from analysis.dashboard.catalogue import PANELS
from analysis.dashboard.drawing import (
    extremes,
    make_sheet,
    overlay_charts,
    pack_histogram,
    pack_line,
    run_chart,
)
from analysis.dashboard.lines import Chart, Line, column, columns
from analysis.dashboard.payload import Payload
from minigpt import records as col
from tests.analysis.dashboard.runs import changed, decoded, full, history

CHARTS = {chart.key: chart for panel in PANELS for chart in panel.charts}


def sheet_of(run, keep=(), lines=10, payload=None, index=0):
    return make_sheet(run, index, list(keep), lines, payload or Payload())


def numbers(sheet):
    return decoded(sheet.payload.index, sheet.payload.encoded())


def line_of(label, rows, values, **style):
    return Line(label, np.array(rows), np.array(values, float), **style)


# -- a line ----------------------------------------------------------------------------


def test_a_short_line_is_every_value_at_its_step():
    run = history({"a": [1.0, np.nan, np.inf, 4.0]}, steps=[10, 11, 12, 13])
    sheet = sheet_of(run)
    packed = pack_line(sheet, column(run, "a", "A"))
    arrays = numbers(sheet)
    assert arrays[packed["grid"]["first"]] == [10, 11, 12, 13]
    assert arrays[packed["start"]][::3] == [1.0, 4.0]
    assert arrays[packed["odd"]] == [1, 2]
    assert math.isnan(arrays[packed["odd_values"]][0])
    assert arrays[packed["odd_values"]][1] == math.inf
    assert "end" not in packed
    assert "last" not in packed["grid"]


def test_a_long_line_loses_no_extreme_and_no_window(monkeypatch):
    monkeypatch.setattr(drawing, "MAX_VALUES", 10_000)
    rng = np.random.default_rng(0)
    values = rng.standard_normal(20_000)
    values[rng.random(20_000) < 0.01] = np.nan
    run = history({"a": values}, steps=np.arange(20_000) + 500)
    sheet = sheet_of(run, keep=[9000])
    packed = pack_line(sheet, column(run, "a", "A"))
    arrays = numbers(sheet)
    first, last = (arrays[packed["grid"][key]] for key in ("first", "last"))
    start, end = arrays[packed["start"]], arrays[packed["end"]]
    odd = set(arrays[packed["odd"]])
    assert [b + 1 for b in last[:-1]] == first[1:]
    assert (first[0], last[-1]) == (500, 20_499)
    for cell, (a, b) in enumerate(zip(first, last, strict=True)):
        part = values[a - 500 : b - 499]
        finite = part[np.isfinite(part)].astype(np.float32)
        assert (cell in odd) == (len(finite) < len(part))
        if len(finite):
            assert min(start[cell], end[cell]) == finite.min()
            assert max(start[cell], end[cell]) == finite.max()
    assert set(range(9500 - 60, 9500 + 121)) <= {
        a for a, b in zip(first, last, strict=True) if a == b
    }
    assert len(first) < 1000


def test_a_sparse_line_has_its_own_steps():
    run = history({}, None, {"v": {2: 5.0, 7: 6.0}}, range(10))
    sheet = sheet_of(run, keep=[7, 9])
    packed = pack_line(sheet, column(run, "v", "V"))
    arrays = numbers(sheet)
    assert arrays[packed["grid"]["first"]] == [2, 7]
    assert arrays[packed["start"]] == [5.0, 6.0]


def test_lines_of_the_same_steps_share_them():
    run = history({"a": np.zeros(5), "b": np.ones(5)})
    sheet = sheet_of(run)
    grids = [pack_line(sheet, column(run, n, n))["grid"] for n in ("a", "b")]
    assert grids[0] == grids[1]
    assert len(sheet.payload.index) == 3


@pytest.mark.parametrize("first", [-5, 2**32, 2**53 - 5])
def test_steps_may_begin_anywhere(first):
    run = history({"a": np.zeros(3)}, steps=np.arange(3) + first)
    sheet = sheet_of(run)
    packed = pack_line(sheet, column(run, "a", "A"))
    assert numbers(sheet)[packed["grid"]["first"]] == [first, first + 1, first + 2]


# -- a chart and its baseline ----------------------------------------------------------


def chart(build, **options):
    return Chart("key", "Title", "unit", build, **options)


TWO = chart(lambda run: columns(run, [("a", "A"), ("b", "B")]))


def test_a_chart_without_lines_says_why():
    packed = run_chart(TWO, sheet_of(history({"c": [1.0]})), None)
    assert packed["absent"] == "the record has no column a; the record has no column b"
    assert packed["lines"] == []


def test_few_lines_of_a_baseline_are_drawn_one_by_one_and_first():
    run, below = history({"a": [1.0, 2.0]}), history({"a": [3.0] * 5, "b": [4.0] * 5})
    payload = Payload()
    sheet, other = sheet_of(run, payload=payload), sheet_of(below, (), 9, payload, 1)
    packed = run_chart(TWO, sheet, other)
    told = [(line["label"], line["run"], "grey" in line) for line in packed["lines"]]
    assert told == [
        ("baseline: A", 1, True),
        ("baseline: B", 1, True),
        ("A", 0, False),
    ]
    arrays = numbers(sheet)
    assert [len(arrays[line["start"]]) for line in packed["lines"]] == [5, 5, 2]


@pytest.mark.parametrize(
    ("below", "note"),
    [
        (history({"c": [1.0]}), "Baseline: the record has no column a; the record has"),
        (history({"a": []}, steps=[]), "Baseline: the record has no steps; the record"),
    ],
)
def test_a_baseline_without_the_lines_is_a_note(below, note):
    packed = run_chart(TWO, sheet_of(history({"a": [1.0]})), sheet_of(below, index=1))
    assert [line["label"] for line in packed["lines"]] == ["A"]
    assert packed["notes"][0].startswith(note)


def test_many_lines_of_a_baseline_are_drawn_as_their_range():
    run = full(9, tensors=6)
    packed = run_chart(CHARTS["second"], sheet_of(run), sheet_of(full(30, 6), index=1))
    labels = [line["label"] for line in packed["lines"] if "grey" in line]
    assert labels == ["baseline: largest", "baseline: smallest"]


def test_extremes_of_lines_with_other_rows():
    """They were all drawn, or one of them was called the largest."""
    lines = [
        line_of("p", [0, 1, 2], [1.0, 5.0, np.nan]),
        line_of("q", [1, 4], [7.0, -1.0], sparse=True, dashed=True),
        line_of("r", [2, 4], [np.nan, -2.0]),
    ]
    high, low = extremes(lines)
    assert high.rows.tolist() == low.rows.tolist() == [0, 1, 2, 4]
    assert np.array_equal(high.values, [1.0, 7.0, np.nan, -1.0], equal_nan=True)
    assert np.array_equal(low.values, [1.0, 5.0, np.nan, -2.0], equal_nan=True)
    assert (high.label, high.dashed, high.sparse) == ("largest", False, False)
    assert (low.label, low.dashed) == ("smallest", True)


def test_lines_that_are_not_finite_are_named_with_their_first_step():
    run = history(
        {"a": [1.0, np.nan, np.inf], "b": [1.0, 2.0, np.nan]}, steps=[7, 8, 9]
    )
    packed = run_chart(TWO, sheet_of(run), None)
    first, second = packed["notes"]
    assert first.startswith("Not finite")
    assert first.endswith("first at step 8: A.")
    assert second.endswith("first at step 9: B.")


def test_the_share_of_clipped_steps_is_counted():
    run = changed(full(8), clip_coef=[1, 1, 0.5, 0.1, 1, 1, 1, np.nan])
    packed = run_chart(CHARTS["norm"], sheet_of(run), None)
    assert packed["notes"] == [
        "Clipped in 2 of 8 steps (25.0%); dotted, the clip of 1."
    ]
    assert packed["rulers"] == [1.0]
    run = changed(full(8, clip=None), without=(col.CLIP_COEF,))
    packed = run_chart(CHARTS["norm"], sheet_of(run), None)
    assert packed["notes"] == [
        "Share of clipped steps: unknown, the record has no optim/clip_coef."
    ]
    assert packed["rulers"] == []


def test_what_the_accounting_cannot_judge_is_named():
    packed = run_chart(CHARTS["residual"], sheet_of(full(8, optimizer="sgd")), None)
    assert packed["absent"] == "the optimizer is sgd, not adam or adamw"
    run = changed(full(8, tensors=3), without=(f"{col.GRAD_NORM}layer.1.weight",))
    packed = run_chart(CHARTS["residual"], sheet_of(run), None)
    assert [line["label"] for line in packed["lines"]] == [
        "layer.0.weight",
        "layer.2.weight",
    ]
    assert packed["notes"][0] == (
        "Not applicable: layer.1.weight (column grad_norm/layer.1.weight is missing)."
    )


def test_the_balance_is_each_norm_over_the_global_one():
    run = full(4, tensors=2)
    sheet = sheet_of(run)
    packed = run_chart(CHARTS["balance"], sheet, None)
    whole = run.scalar(col.GRAD_NORM_PRECLIP).tolist()
    for line in packed["lines"]:
        part = run.scalar(col.GRAD_NORM + line["label"]).tolist()
        expected = [a / b for a, b in zip(part, whole, strict=True)]
        assert numbers(sheet)[line["start"]] == pytest.approx(expected, rel=1e-6)


# -- the histogram ---------------------------------------------------------------------


def histogram_of(count, limit, monkeypatch, keep=()):
    monkeypatch.setattr(drawing, "MAX_COLUMNS", limit)
    run = full(count)
    sheet = sheet_of(run, keep)
    packed, bins = pack_histogram(sheet), 32
    arrays = numbers(sheet)
    raw = run.array(col.TOKEN_LOSS_HISTOGRAM)[0].reshape(count, bins)
    first, last = arrays[packed["first"]], arrays[packed["last"]]
    for cell, (a, b) in enumerate(zip(first, last, strict=True)):
        expected = [sum(int(n) for n in raw[a : b + 1, i]) for i in range(bins)]
        assert arrays[packed["counts"]][cell * bins : (cell + 1) * bins] == expected
    assert sum(b - a + 1 for a, b in zip(first, last, strict=True)) == count
    return first, last


def test_the_histogram_counts_every_token_once(monkeypatch):
    first, last = histogram_of(30, 30, monkeypatch)
    assert first == last == list(range(30))
    first, last = histogram_of(1000, 40, monkeypatch, keep=[500])
    assert len(first) < 300
    assert {500} < {a for a, b in zip(first, last, strict=True) if a == b}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (None, "The record has no column token/loss_histogram."),
        ([np.ones(32)] * 3, "Not every step has the 32 bins of a histogram."),
        ([np.full(32, -1)] * 3, "Not every step has the 32 bins of a histogram."),
        (
            [np.ones(32, int), np.ones(31, int), np.ones(33, int)],
            "Not every step has the 32 bins of a histogram.",
        ),
    ],
)
def test_what_is_no_histogram_says_so(rows, reason):
    arrays = {} if rows is None else {col.TOKEN_LOSS_HISTOGRAM: rows}
    run = history({col.TRAIN_LOSS: np.zeros(3)}, arrays)
    assert pack_histogram(sheet_of(run)) == {"absent": reason}


# -- several runs ----------------------------------------------------------------------


def test_an_overlay_has_one_line_a_run_and_one_chart_a_label():
    payload = Payload()
    runs = [
        history({"a": [1.0], "b": [2.0]}, name="x"),
        history({"a": [3.0]}, name="y"),
    ]
    sheets = [sheet_of(run, (), 9, payload, index) for index, run in enumerate(runs)]
    both = chart(TWO.build, alone=("A", "B"))
    first, second = overlay_charts(both, sheets)
    assert [line["label"] for line in first["lines"]] == ["x", "y"]
    assert [line["label"] for line in second["lines"]] == ["x"]
    assert (first["key"], second["key"]) == ("key-0", "key-1")
    assert second["notes"] == ["y: nothing called B."]
    assert second["title"] == "Title: B"


def test_an_overlay_of_nothing_names_each_run():
    sheets = [sheet_of(history({"c": [1.0]}, name=name)) for name in "xy"]
    (packed,) = overlay_charts(chart(lambda run: [column(run, "a", "A")]), sheets)
    # The page puts the last full stop.
    assert packed["absent"] == (
        "x: the record has no column a. y: the record has no column a"
    )
    assert packed["notes"] == []


def test_an_overlay_of_many_lines_draws_the_largest():
    run = history({"a": [1.0, 9.0, np.nan], "b": [2.0, 3.0, 4.0]}, name="x")
    sheet = sheet_of(run)
    (packed,) = overlay_charts(TWO, [sheet])
    assert numbers(sheet)[packed["lines"][0]["start"]] == [2.0, 9.0, 4.0]
    assert packed["title"] == "Title: the largest"
