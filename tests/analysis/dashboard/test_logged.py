"""Pages of runs that scripts logged: their own values and their histograms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.dashboard import heat, logged
from analysis.dashboard.heat import BINS, PARTS, read_heat
from analysis.dashboard.pages import draw_comparison, draw_dashboard
from analysis.logged import Declared, histogram_keys, read_as_ours
from tests.analysis.dashboard.page_checks import check
from tests.analysis.dashboard.runs import charts_of, full, history, page_arrays

STEPS = [5, 10, 20, 40]


def script(occasional=None, arrays=None, steps=STEPS, name="a-run", flat=None):
    """A logged run; its scalars are occasional, as those of a script are."""
    flat = {"time/wall": np.arange(float(len(steps)))} | (flat or {})
    run = history(flat, arrays, occasional, steps, name=name)
    declared, notes = Declared(), []
    data = read_as_ours(run.data, declared, notes)
    return replace(run, data=data, logged=declared, notes=notes)


def histograms(*rows, key="w"):
    """Arrays of a key; a row is (counts, edges) or None."""
    empty = [], []
    pairs = [row or empty for row in rows]
    return {
        f"histogram/{key}/counts": [np.array(c, np.uint32) for c, _ in pairs],
        f"histogram/{key}/edges": [np.array(e, np.float32) for _, e in pairs],
    }


def test_what_no_panel_shows_has_a_chart_of_its_own():
    run = script({"loss": {0: 1.0, 2: 2.0}, "acc": {1: 0.5}, "speed": {0: 1, 3: 500}})
    charts = charts_of(page := check(draw_dashboard(run), "VH"))
    shown = [charts[key]["title"] for key in charts if key.startswith("logged-")]
    assert shown == ["acc", "speed", "Logged histograms"]
    assert [charts[f"logged-{n}"]["scale"] for n in (0, 1)] == ["linear", "log"]
    assert charts["loss"]["unit"] == "as logged"
    assert charts["logged-histograms"]["absent"] == "the script logged no histograms"
    assert "loss is read as train/loss" in page["notes"]


def test_a_run_of_our_trainer_has_no_such_panels():
    check(draw_dashboard(full(30)))


def test_a_script_that_logs_nothing_more_is_told_so():
    charts = charts_of(check(draw_dashboard(script({"loss": {0: 1.0}})), "VH"))
    assert charts["logged-values"]["absent"] == "the script logged no other values"


def test_every_panel_of_an_empty_record_says_why():
    charts = charts_of(check(draw_dashboard(script(steps=[])), "VH"))
    assert all(chart["absent"] for chart in charts.values())


def test_there_are_only_so_many_charts_and_the_rest_is_named(monkeypatch):
    monkeypatch.setattr(logged, "MAX_VALUES", 3)
    run = script({f"key{n}": {0: n} for n in range(12)})
    page = check(draw_dashboard(run), "VH")
    (panel,) = [panel for panel in page["panels"] if panel["number"] == "V"]
    assert [chart["title"] for chart in panel["charts"]] == ["key0", "key1", "key2"]
    assert panel["note"] == (
        "Not drawn, as there are too many values: key3, key4, key5, key6, key7, key8 "
        "and 3 more."
    )


def test_a_hostile_key_is_text():
    key = "\"]'><script>alert(1)</script>"
    text = draw_dashboard(script({key: {0: 1.0}}))
    assert charts_of(check(text, "VH"))["logged-0"]["title"] == key
    assert "<script>alert" not in text


def test_a_histogram_is_dealt_to_common_bins():
    run = script(
        arrays=histograms(([1, 3], [0, 1, 2]), None, ([4], [2, 4]), None),
    )
    found = read_heat(run, "w")
    assert found.rows.tolist() == [0, 2]
    assert (found.low, found.width) == (0.0, 4 / BINS)
    half = BINS // 4
    sums = [found.parts[0, :half].sum(), found.parts[0, half : 2 * half].sum()]
    assert sums == pytest.approx([PARTS / 4, 3 * PARTS / 4], abs=BINS)
    assert found.parts[0, 2 * half :].sum() == 0
    assert found.parts[1, : 2 * half].sum() == 0
    assert found.medians.tolist() == [pytest.approx(4 / 3), 3.0]


def test_one_value_among_a_million_is_seen():
    run = script(arrays=histograms(([10**6, 1], [0, 1, 2]), None, None, None))
    assert (read_heat(run, "w").parts[0] > 0).all()


@pytest.mark.parametrize(
    "row",
    [
        ([1, 2], [0, 1]),
        ([1], [1, 1]),
        ([1], [2, 1]),
        ([1], [0, np.inf]),
        ([1], [0, np.nan]),
        None,
    ],
)
def test_a_damaged_histogram_is_left_out(row):
    alone = script(arrays=histograms(row, None, None, None))
    assert read_heat(alone, "w") is None
    charts = charts_of(check(draw_dashboard(alone), "VH"))
    assert charts["heat-0"]["absent"] == "no step has a whole histogram of w"
    both = script(arrays=histograms(row, ([1], [0, 1]), None, None))
    assert read_heat(both, "w").rows.tolist() == [1]


def test_a_histogram_without_a_finite_value_is_an_empty_column():
    run = script(arrays=histograms(([0], [0, 1]), ([2], [0, 1]), None, None))
    found = read_heat(run, "w")
    assert found.parts[0].sum() == 0
    assert np.isnan(found.medians[0])


def test_each_histogram_is_drawn_until_the_next():
    run = script(arrays=histograms(([1], [0, 1]), ([1], [0, 1]), None, ([1], [0, 1])))
    text = draw_dashboard(run)
    packed, arrays = charts_of(check(text, "VH"))["heat-0"], page_arrays(text)
    found = packed["histogram"]
    assert arrays[found["first"]] == [5, 10, 40]
    assert arrays[found["last"]] == [9, 39, 40]
    assert len(arrays[found["counts"]]) == 3 * found["bins"]


def test_many_histograms_are_bounded(monkeypatch):
    monkeypatch.setattr(heat, "MAX_READ", 10)
    steps = list(range(101))
    rows = [([1], [0, 1])] * 101
    run = script(arrays=histograms(*rows), steps=steps)
    assert len(read_heat(run, "w").rows) <= 10


def test_counts_without_edges_are_no_histogram():
    arrays = histograms(([1], [0, 1]), None, None, None)
    del arrays["histogram/w/edges"]
    assert histogram_keys(script(arrays=arrays).data) == []


def test_two_scripts_are_laid_over_each_other():
    one = script({"acc": {0: 1}}, histograms(([1], [0, 1]), None, None, None))
    two = script({"other": {0: 1}}, name="b", steps=[7, 9])
    page = check(draw_comparison([one, two]), "VH")
    charts = charts_of(page)
    assert {"logged-0-0", "logged-1-0", "heat-0-0"} <= charts.keys()
    assert charts["logged-0-0"]["notes"] == ["b: the record has no column acc."]
    assert [line["label"] for line in charts["logged-1-0"]["lines"]] == ["b"]


def test_a_script_is_compared_with_a_run_of_ours():
    run = script({"loss": {0: 1.0, 1: 2.0}, "acc": {0: 1}}, steps=[0, 1])
    check(draw_comparison([full(20), run]), "VH")
    check(draw_dashboard(run, full(20)), "VH")
