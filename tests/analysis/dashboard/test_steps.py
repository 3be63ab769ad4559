"""Where a run went on is said and drawn; how far a key moves the step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.dashboard.pages import draw_comparison, draw_dashboard
from analysis.dashboard.seams import MOST_SEAMS, seam_notes, seams
from tests.analysis.dashboard.runs import history, page_json


def resumed(*steps, name="x"):
    run = history({"train/loss": [2.0] * 50}, name=name)
    return replace(run, facts=replace(run.facts, resumed_at=steps))


def test_a_run_that_was_never_resumed_has_no_seam():
    assert (seams([resumed()]), seam_notes(resumed())) == ([], [])


def test_each_step_once_and_within_the_record():
    assert seams([resumed(30, 30, 7, 50, 900)]) == [7, 30]
    assert seams([resumed(3), resumed(2, 3)]) == [2, 3]
    assert seams([history({"train/loss": []})]) == []


def test_many_are_not_all_drawn_or_named():
    run = resumed(*range(10, 49), *range(9))
    assert len(seams([run])) == 48 <= MOST_SEAMS
    (note,) = seam_notes(run)
    assert "at step 0, 1, 2, 3, 4 and 43 more," in note


def test_both_pages_say_so():
    page = page_json(draw_dashboard(resumed(30)))
    assert page["seams"] == [30]
    html = draw_comparison([resumed(30, name="a"), resumed(name="b")])
    assert page_json(html)["seams"] == [30]
    assert "a: the run was resumed at step 30" in html
    assert "b: the run was resumed" not in html


@pytest.mark.parametrize(
    ("steps", "stride"),
    [
        ([0, 1, 2], 1),
        ([0, 100, 200, 500], 100),
        ([50, 150, 350], 100),
        ([7], 1),
        ([], 1),
        ([0, 10, 15], 5),
    ],
)
def test_keys_move_by_the_distance_of_the_recorded_steps(steps, stride):
    run = history({"train/loss": [2.0] * len(steps)}, steps=steps)
    assert page_json(draw_dashboard(run))["stride"] == stride


def test_keys_reach_the_steps_of_every_run_of_a_comparison():
    runs = [
        history({"train/loss": [2.0] * 3}, steps=steps)
        for steps in ([0, 100, 200], [25, 75, 125])
    ]
    assert page_json(draw_comparison(runs))["stride"] == 25
