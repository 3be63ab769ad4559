"""The loss of a run minus that of the first."""

import numpy as np
import pytest

from analysis.dashboard.difference import loss_difference
from analysis.dashboard.lines import Absent
from analysis.dashboard.pages import draw_comparison
from minigpt.records import TRAIN_LOSS
from tests.analysis.dashboard.runs import charts_of, full, history, page_json


def run(losses, steps=None, name="other"):
    return history({TRAIN_LOSS: losses}, steps=steps, name=name)


def test_it_is_the_difference_at_each_common_step():
    first = run([3.0, 2.0, 1.0, 0.5], steps=[0, 1, 2, 4], name="first")
    other = run([1.0, 5.0, np.inf, 9.0], steps=[1, 2, 4, 5])
    (line,) = loss_difference(first).build(other)
    assert line.label == "minus that of first"
    assert line.rows.tolist() == [0, 1, 2]
    np.testing.assert_equal(line.values, [-1.0, 4.0, np.inf])


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (run([1.0], steps=[9]), "no step in common with first"),
        (history({"optim/lr": [1.0, 2.0]}), "no column train/loss"),
    ],
)
def test_what_cannot_be_compared_says_why(other, reason):
    first = run([3.0, 2.0], name="first")
    with pytest.raises(Absent, match=reason):
        loss_difference(first).build(other)


def test_the_first_run_itself_is_not_drawn():
    first = run([3.0, 2.0])
    with pytest.raises(Absent, match="compared with it"):
        loss_difference(first).build(first)


def test_the_page_of_several_runs_has_it_in_the_first_panel():
    page = page_json(draw_comparison([full(20, name="a"), full(20, seed=1, name="b")]))
    assert page["panels"][0]["charts"][-1]["key"] == "difference-0"
    chart = charts_of(page)["difference-0"]
    assert [line["label"] for line in chart["lines"]] == ["b"]
    assert chart["notes"] == ["a: the others are compared with it."]
