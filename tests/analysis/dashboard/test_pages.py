"""Whole pages: of odd runs, hostile ones and long ones, and of several."""

import json

import numpy as np
import pytest

from analysis.dashboard.catalogue import PANELS
from analysis.dashboard.lines import MAX_LINES
from analysis.dashboard.pages import MAX_RUNS, draw_comparison, draw_dashboard
from analysis.history import load
from minigpt import records as col
from minigpt.records import InputError
from tests.analysis.dashboard.runs import (
    changed,
    charts_of,
    full,
    history,
    page_arrays,
    page_json,
    visible,
)

NUMBERS = [*"1234567", "M", "B"]
HEALTHY = "No step is flagged"


def check(text):
    """What holds for every page; its description."""
    text.encode()
    page, arrays = page_json(text), page_arrays(text)
    shown = visible(text)
    assert [panel["number"] for panel in page["panels"]] == NUMBERS
    for panel in page["panels"]:
        assert panel["title"] in shown
        assert panel["conclusion"] in shown
    for chart in charts_of(page).values():
        assert bool(chart["lines"]) != bool(chart["absent"])
        if chart["absent"]:
            assert f"Nothing to draw: {chart['absent']}." in shown
        for note in chart["notes"]:
            assert note
            assert note in shown
        for line in chart["lines"]:
            first = arrays[line["grid"]["first"]]
            last = arrays[line["grid"].get("last", line["grid"]["first"])]
            start, end = arrays[line["start"]], arrays[line.get("end", line["start"])]
            assert len(first) == len(last) == len(start) == len(end) > 0
    return page


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
    check(draw_dashboard(changed(full(30), without=(name,))))


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


# -- several runs ----------------------------------------------------------------------


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
    check(draw_comparison([load(odd), load(plain)]))


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


# -- hostile text ----------------------------------------------------------------------

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}{% raw %}${7*7}",
    "<!--<script>",
    "]]>&amp;&lt;'\"`",
    "a\u2028b\u2029c\u0000\x1b[31m",
    "\ud800 half \udfff",
    "🙂" * 9,
]


def hostile_run(text, folder, **options):
    """A run in which everything that is text is this one."""
    printable = "".join(char for char in text if char.isprintable())
    flat = {col.TRAIN_LOSS: np.r_[np.ones(199), np.nan]}
    for prefix in (*col.PER_TENSOR, col.ACT_MAX_ABS):
        flat[prefix + printable] = np.ones(200)
    flat[f"{col.EXP_AVG_SQ_SUM}{printable}"] = np.r_[np.ones(100), np.full(100, 9.0)]
    tokens = [np.array([1, 2], np.uint16)] * 200
    arrays = {col.BATCH_TOKENS: tokens, col.BATCH_ROW_LENGTHS: [np.array([2])] * 200}
    pieces = {
        "model": {"vocab": {text: 1}},
        "added_tokens": [{"id": 2, "content": text}],
    }
    (folder / "vocabulary.json").write_text(json.dumps(pieces))
    facts = {"vocabulary": "vocabulary.json", "precision": text, "optimizer": "adamw"}
    return history(
        flat,
        arrays,
        folder=folder,
        name=text,
        notes=[text],
        **(facts | {"schedule": {text: text}} | options),
    )


UNSHOWN = {*"\ud800\udfff", "\x00", "\x1b", "\u202e", "\u2066"}


@pytest.mark.parametrize("text", [*HOSTILE, "run\u202ename\u2066"])
def test_text_stays_text(tmp_path, text):
    run = hostile_run(text, tmp_path)
    manifest = {"config": {text: {text: text}}, "versions": {text: text}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    pages = [draw_dashboard(run, run), draw_comparison([run, full(3)])]
    for page in pages:
        described = check(page)
        kind = described["kind"]
        plain = draw_dashboard(run_of_a(tmp_path), run_of_a(tmp_path))
        if kind == "comparison":
            (tmp_path / "manifest.json").write_text('{"config": {"a": {"a": "a"}}}')
            plain = draw_comparison([run_of_a(tmp_path), full(3)])
        assert markup(page) == markup(plain)  # not one tag more
        assert "49" not in described["title"]
        # half characters, control characters and those that turn the text around
        shown = "".join("\ufffd" if one in UNSHOWN else one for one in text)
        assert described["runs"][0] == shown
        assert shown in visible(page)


def run_of_a(folder):
    return hostile_run("a", folder)


def markup(page):
    """The names of all tags, in order, as the browser's parser would see them."""
    from html.parser import HTMLParser

    found = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append((tag, sorted(name for name, _ in attrs)))

        def handle_endtag(self, tag):
            found.append(tag)

        def handle_comment(self, data):
            found.append("comment")

    Parser().feed(page)
    # Of the choices, the hostile manifest has one row more: its versions.
    return [one for one in found if one not in ROW]


ROW = ["tr", "td", "th", ("tr", []), ("td", []), ("th", ["scope"])]


def test_texts_are_cut_before_they_fill_the_page(tmp_path):
    long = "x" * 100_000
    run = hostile_run("a", tmp_path, precision=long)
    object.__setattr__(run, "name", long)
    (tmp_path / "manifest.json").write_text(json.dumps({"config": {"a": long}}))
    text = draw_dashboard(run, run)
    check(text)
    assert len(text) < 500_000
    text = draw_comparison([run] * 20)
    check(text)
    assert len(text) < 3_000_000
