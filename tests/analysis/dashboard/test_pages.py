"""Whole pages of one run: ordinary, odd and long."""

import numpy as np
import pytest

from analysis.dashboard.lines import MAX_LINES
from analysis.dashboard.pages import draw_comparison, draw_dashboard
from analysis.history import load
from minigpt import records as col
from tests.analysis.dashboard.page_checks import check
from tests.analysis.dashboard.runs import (
    changed,
    charts_of,
    full,
    history,
    page_arrays,
    page_json,
    visible,
)

HEALTHY = "No step is flagged"


# -- one run ---------------------------------------------------------------------------


def test_every_panel_of_a_full_run_is_drawn_and_says_what_to_conclude():
    text = draw_dashboard(full(30))
    page = check(text)
    assert all(not chart["absent"] for chart in charts_of(page).values())
    assert "absent" not in charts_of(page)["histogram"]["histogram"]
    assert HEALTHY in visible(text)
    assert (page["title"], page["kind"], page["steps"]) == ("a-run", "run", [0, 29])
    assert all(panel["conclusion"] for panel in page["panels"])
    assert [panel["wide"] for panel in page["panels"]].count(False) % 2 == 0


def test_each_value_of_a_short_run_is_in_the_page():
    run = full(30)
    text = draw_dashboard(run)
    charts, arrays = charts_of(page_json(text)), page_arrays(text)
    drawn = {
        "lr": [col.LR, col.LR_DECLARED],
        "norm": [col.GRAD_NORM_PRECLIP, col.GRAD_NORM_POSTCLIP],
        "act_max": [name for name in run.columns if name.startswith(col.ACT_MAX_ABS)],
        "second": [col.EXP_AVG_SQ_SUM + name for name in run.tensors],
        "first": [col.EXP_AVG_NORM + name for name in run.tensors],
    }
    for key, names in drawn.items():
        for line, name in zip(charts[key]["lines"], names, strict=True):
            values = run.scalar(name).astype(np.float32).tolist()
            assert arrays[line["start"]] == values
            assert arrays[line["grid"]["first"]] == list(range(30))


def spoiled(value):
    """A run whose every number is this one."""
    run = full(120)
    for name, column in run.data.flat.items():
        if column.dtype != np.uint64:
            with np.errstate(over="ignore", under="ignore"):
                run.data.flat[name] = np.full(len(column), value).astype(column.dtype)
    for name, (values, offsets) in run.data.arrays.items():
        if values.dtype.kind == "f":
            with np.errstate(over="ignore", under="ignore"):
                values = np.full(len(values), value).astype(values.dtype)
            run.data.arrays[name] = values, offsets
    return run


ODD = {
    "no steps": lambda: full(0),
    "one step": lambda: full(1),
    "three steps": lambda: full(3),
    "no tensors": lambda: full(30, tensors=0),
    "nothing but steps": lambda: history({}, steps=range(5)),
    "nothing at all": lambda: history({}, steps=[]),
    "the loss alone": lambda: history({col.TRAIN_LOSS: np.linspace(3, 1, 300)}),
    "one bare NaN": lambda: history({col.TRAIN_LOSS: [np.nan]}),
    "late steps": lambda: full(30, steps=np.arange(30) + 10**6),
    "huge steps": lambda: full(30, steps=np.arange(30) + 2**40),
    "steps with gaps": lambda: full(30, steps=np.arange(30) ** 3),
    "many tensors": lambda: full(20, tensors=MAX_LINES + 9),
    "no facts": lambda: full(
        30, **dict.fromkeys(["optimizer", "beta1", "beta2", "eps", "clip"])
    ),
    "unknown facts": lambda: full(30, clip=None, unknown=("clip", "seed")),
    "clip of 0": lambda: full(30, clip=0),
} | {
    f"all {value}": lambda value=value: spoiled(value)
    for value in (np.nan, np.inf, -np.inf, 0.0, -1.0, 1e300, -1e300, 1.7e308, 5e-324)
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_every_panel_of_an_odd_run_is_drawn_or_says_why(make):
    run = make()
    page = check(draw_dashboard(run))
    if len(run):
        assert page["steps"] == [run.steps[0], run.steps[-1]]
    else:
        assert page["steps"] == [0, 0]
        assert all(chart["absent"] for chart in charts_of(page).values())


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_odd_runs_as_baseline_and_in_a_comparison(make):
    run, odd = full(40), make()
    page = check(draw_dashboard(run, odd))
    assert page["baseline"] == odd.name
    check(draw_dashboard(odd, run))
    check(draw_comparison([run, odd]))
    check(draw_comparison([odd, run]))


COLUMNS = full(1).columns


@pytest.mark.parametrize("name", COLUMNS)
def test_any_column_may_be_missing(name):
    page = check(draw_dashboard(changed(full(30), without=(name,))))
    assert page["steps"] == [0, 29]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_that_is_there_alone(name):
    run = changed(full(30), without=tuple(one for one in COLUMNS if one != name))
    assert run.columns == [name]
    check(draw_dashboard(run))


def test_flags_are_in_the_page():
    run = full(400)
    run.data.flat[col.DUPLICATE_ROWS][100] = 4
    run.data.flat[col.TRAIN_LOSS][300:] = np.nan
    text = draw_dashboard(run)
    assert check(text)["flags"] == [
        {"step": 100, "text": "4 rows of the batch equal another of its rows"},
        {"step": 300, "text": "the loss is nan"},
    ]
    assert HEALTHY not in visible(text)
    assert 'data-step="300"' in text


def test_more_flags_than_the_list_holds_are_counted():
    run = full(11_000, tensors=0)
    run.data.flat[col.LR][::80] = 5.0
    text = draw_dashboard(run)
    assert len(page_json(text)["flags"]) == 138
    assert "and 38 more." in visible(text)


def test_a_baseline_of_other_length_and_columns():
    below = changed(full(50, seed=1), without=(col.LR, col.LR_DECLARED))
    charts = charts_of(check(draw_dashboard(full(30), below)))
    assert charts["lr"]["notes"] == [
        "Baseline: the record has no column optim/lr; the record has no column "
        "optim/lr_declared."
    ]
    assert [line["run"] for line in charts["norm"]["lines"]] == [1, 1, 0, 0]
    assert [line.get("grey") for line in charts["norm"]["lines"]] == [True] * 2 + [
        None
    ] * 2


def test_a_baseline_without_steps_is_named_and_not_forgotten():
    text = draw_dashboard(full(30), full(0, name="empty-twin"))
    assert check(text)["baseline"] == "empty-twin"
    assert "empty-twin" in visible(text)
    assert "Baseline: the record has no steps." in visible(text)


def test_drawing_changes_nothing_and_is_repeatable():
    run = full(30)
    before = {name: values.tobytes() for name, values in run.data.flat.items()}
    assert draw_dashboard(run, run) == draw_dashboard(run, run)
    assert before == {name: values.tobytes() for name, values in run.data.flat.items()}


# -- what a blind reader may see -------------------------------------------------------


def test_the_page_of_a_run_does_not_say_what_was_done_to_it(build, tmp_path):
    config = {"injection": {"kind": "zebra_fault", "factor": 31337.0}, "giraffe": "x"}
    folder = build.run(tmp_path / "a", build.records(9), config=config, tags=["okapi"])
    twin = build.run(tmp_path / "b", build.records(9), config=config, name="twin")
    text = draw_dashboard(load(folder), load(twin))
    assert check(text)["facts"][0] == ["status", "finished"]
    for word in ("zebra", "31337", "giraffe", "okapi", "injection"):
        assert word not in text.lower()
    # The comparison is not blind: it begins with the choices that differ.
    other = build.run(tmp_path / "c", build.records(9), config={"injection": {}})
    assert "zebra_fault" in visible(draw_comparison([load(folder), load(other)]))


def test_facts_are_those_of_the_manifest(build, tmp_path):
    run = load(build.run(tmp_path / "a", build.records(9)))
    facts = dict(page_json(draw_dashboard(run))["facts"])
    assert facts["seed"] == "42"
    assert facts["clip"] == "1"
    assert facts["optimizer"] == "adamw (0.9, 0.95), eps 1e-08"
    assert facts["schedule"] == "kind cosine, warmup 100, peak 0.0003"
    bare = load(build.run(tmp_path / "b", build.records(9), facts={"clip": None}))
    facts = dict(page_json(draw_dashboard(bare))["facts"])
    assert facts["clip"] == "no clipping"
    assert {facts[key] for key in ("seed", "optimizer", "schedule")} == {"not declared"}


# -- long runs -------------------------------------------------------------------------


def lively(count, tensors, tokens=16):
    """Random numbers, which no compression helps, and more flags than windows."""
    run = full(count, tensors, tokens=tokens)
    loss = run.data.flat[col.TRAIN_LOSS]
    loss[np.linspace(0.03 * count, 0.97 * count, 15).astype(int)] += 5
    return run


@pytest.mark.parametrize(
    ("count", "tensors", "megabytes"),
    [(2000, 28, 3), (50_000, 6, 6), (15_000, MAX_LINES, 6)],
)
def test_pages_of_long_runs_stay_small(count, tensors, megabytes):
    run = lively(count, tensors, tokens=64)
    text = draw_dashboard(run, run)
    assert len(text) < megabytes * 1e6
    page = page_json(text)
    assert len(page["flags"]) == 15
    assert bool(page["notes"]) == (count > 2000)


def test_a_thinned_page_keeps_the_extremes_and_what_was_flagged():
    run = lively(20_000, 2)
    text = draw_dashboard(run)
    page, arrays = page_json(text), page_arrays(text)
    charts = charts_of(page)
    for key, name in (("loss", col.TRAIN_LOSS), ("norm", col.GRAD_NORM_PRECLIP)):
        line, values = charts[key]["lines"][0], run.scalar(name).astype(np.float32)
        drawn = arrays[line["start"]] + arrays[line["end"]]
        assert (min(drawn), max(drawn)) == (values.min(), values.max())
    first = charts["loss"]["lines"][0]["grid"]["first"]
    for flag in page["flags"][:10]:
        assert flag["step"] in arrays[first]
    assert page["notes"][0].startswith("20,000 steps are drawn in cells of 3: ")
    log = page["batches"]
    assert {0, 19_999, *(flag["step"] for flag in page["flags"])} <= set(
        arrays[log["rows"]]
    )
