"""Pages of several runs."""

import pytest

from analysis.dashboard.catalogue import PANELS
from analysis.dashboard.pages import MAX_RUNS, draw_comparison, draw_dashboard
from analysis.history import load
from minigpt import records as col
from minigpt.records import InputError
from tests.analysis.dashboard.page_checks import check
from tests.analysis.dashboard.runs import (
    changed,
    charts_of,
    full,
    page_json,
    visible,
)


@pytest.mark.parametrize("count", [0, 1, MAX_RUNS + 1])
def test_too_few_or_too_many_runs_are_refused(count):
    with pytest.raises(InputError, match=f"expected 2 to {MAX_RUNS}, found {count}"):
        draw_comparison([full(3)] * count)


def test_as_many_as_there_are_colours():
    page = check(
        draw_comparison([full(20, seed=i, name=f"r{i}") for i in range(MAX_RUNS)])
    )
    assert page["runs"] == [f"r{i}" for i in range(MAX_RUNS)]
    assert page["title"] == f"r0 and {MAX_RUNS - 1} more"
    assert len(charts_of(page)["norm-0"]["lines"]) == MAX_RUNS


def test_a_comparison_has_a_chart_for_each_line_that_stands_alone():
    page = check(draw_comparison([full(20), full(20, seed=1)]))
    expected = [
        f"{chart.key}-{number}"
        for panel in PANELS
        for chart in panel.charts
        for number, _ in enumerate(chart.alone or ("",))
    ]
    expected.insert(expected.index("lr-0"), "difference-0")  # in the panel of the loss
    assert list(charts_of(page)) == expected


def divergence(*runs):
    return [one["text"] for one in page_json(draw_comparison(runs))["divergences"]]


def test_where_runs_part():
    base = full(20)
    other = full(20)
    other.data.flat[col.TRAIN_LOSS][7] += 1e-15
    for name in list(other.data.flat)[1:8]:
        other.data.flat[name][8] += 1.0
    more = full(20)
    for name in list(more.data.flat)[:8]:
        more.data.flat[name][8] += 1.0
    fewer = changed(full(12), without=(col.LR,))
    found = divergence(base, other, more, full(20), fewer, full(0))
    assert found[:3] == [
        "first differs at step 7: train/loss",
        "first differs at step 8: train/loss, optim/grad_norm_preclip, "
        "optim/grad_norm_postclip, token/loss_p99, data/rare_token_share, optim/lr "
        "and 2 more",
        "equal in all 20 common steps",
    ]
    assert found[3].endswith("; in one of the two only: optim/lr")
    assert found[4].startswith("no step in common")


def test_choices_that_differ_are_a_table(build, tmp_path):
    configs = [
        {"seed": 1, "name": "p", "paths": {"root": "x"}, "injection": {"kind": "none"}},
        {"seed": 2, "name": "q", "paths": {"root": "y"}, "injection": {"kind": "none"}},
    ]
    runs = [
        load(build.run(tmp_path / str(index), build.records(3), config=config))
        for index, config in enumerate(configs)
    ]
    text = draw_comparison(runs)
    assert check(text)["choices"] == [["seed", ["1", "2"]]]
    same = [
        runs[0],
        load(build.run(tmp_path / "2", build.records(3), config=configs[0])),
    ]
    assert "declare the same choices" in visible(draw_comparison(same))


@pytest.mark.parametrize("config", [None, [], "x", 7, {"seed": {"deep": []}}])
def test_a_manifest_with_a_strange_config_can_be_compared(build, tmp_path, config):
    odd = build.run(tmp_path / "a", build.records(3), config=config, versions=[1])
    plain = build.run(tmp_path / "b", build.records(3))
    page = check(draw_comparison([load(odd), load(plain)]))
    assert len(page["divergences"]) == 1


def test_flags_of_all_runs_in_the_order_of_steps():
    runs = [full(300, name="p"), full(300, name="q")]
    runs[0].data.flat[col.LR][200] = 1.0
    runs[1].data.flat[col.LR][100] = 1.0
    flags = page_json(draw_comparison(runs))["flags"]
    assert [(flag["step"], flag["text"][:2]) for flag in flags] == [
        (100, "q:"),
        (200, "p:"),
    ]


def test_notes_of_the_reading_are_shown():
    run = full(3, notes=["the journal is torn"])
    assert "the journal is torn" in visible(draw_dashboard(run))
    assert "a-run: the journal is torn" in visible(draw_comparison([run, full(3)]))
