"""Records that scripts logged, read like ours: steps, names, gaps, rules."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from analysis.accounting import accounting_residual
from analysis.aliases import ALIASES, alias_of
from analysis.compare import first_difference
from analysis.dashboard.pages import draw_comparison, draw_dashboard
from analysis.flags import find_flags
from analysis.history import load
from analysis.journal import encode_block, encode_header
from analysis.summary import summarise
from analysis.summary_rules import Rule, parse_rule, summary_of
from analysis.verification import check_from_plain, evaluate
from minigpt import records as col
from minigpt.records import InputError, RecordLayout, StepRecord


def write_run(folder, rows, **manifest):
    """A logged run: rows of (step, {key: value})."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = tuple(dict.fromkeys(key for _, values in rows for key in values))
    layout = RecordLayout((col.TIME_WALL,), occasional=keys)
    nothing = np.empty(0, np.float32), np.empty(0, np.uint64)
    records = [
        StepRecord(step, np.array([1.7e9 + step]), *nothing, {}, values)
        for step, values in rows
    ]
    data = encode_header(layout) + encode_block(layout, records)
    (folder / "journal.bin").write_bytes(data)
    found = {"name": folder.name, "kind": "logged", "status": "finished"} | manifest
    (folder / "manifest.json").write_text(json.dumps(found))
    return folder


def losses(steps, key="loss", spike=None, every=1, seed=0):
    """Rows with a loss at every ``every``-th of them and a value at all."""
    rng = np.random.default_rng(seed)
    rows = []
    for row, step in enumerate(steps):
        values = {"acc": rng.random()}
        if row % every == 0:
            values[key] = 9.0 if step == spike else 2 + 0.05 * rng.standard_normal()
        rows.append((step, values))
    return rows


def test_steps_are_those_of_the_script(tmp_path):
    run = load(write_run(tmp_path / "r", losses([3, 10, 11, 500, 2**53 - 1])))
    assert run.steps.tolist() == [3, 10, 11, 500, 2**53 - 1]
    assert run.logged is not None


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([1, 1], "expected more than 1, found 1"),
        ([1, 5, 4], "expected more than 5, found 4"),
        ([-1, 2], "expected 0 or more, found -1"),
    ],
)
def test_steps_that_do_not_grow_are_refused(tmp_path, steps, said):
    with pytest.raises(InputError, match=said):
        load(write_run(tmp_path / "r", losses(steps)))


def test_a_run_of_our_trainer_still_has_every_step(tmp_path):
    folder = write_run(tmp_path / "r", losses([0, 2]), kind=None)
    with pytest.raises(InputError, match="step 1: missing"):
        load(folder)


def test_a_known_name_has_ours_too_and_a_note(tmp_path):
    rows = losses([0, 5, 9], key="Train_Loss", every=2)
    run = load(write_run(tmp_path / "r", rows))
    assert run.scalar(col.TRAIN_LOSS).tobytes() == run.scalar("Train_Loss").tobytes()
    assert run.measured(col.TRAIN_LOSS).tolist() == [True, False, True]
    assert run.logged.aliases == {col.TRAIN_LOSS: "Train_Loss"}
    assert "Train_Loss is read as train/loss" in run.notes
    assert not run.has(col.LR)


def test_a_column_of_our_name_is_its_own(tmp_path):
    rows = [(0, {"loss": 1.0, col.TRAIN_LOSS: 2.0})]
    run = load(write_run(tmp_path / "r", rows))
    assert run.scalar(col.TRAIN_LOSS).tolist() == [2.0]
    assert run.logged.aliases == {}


def test_the_first_key_of_several_counts():
    assert alias_of(col.TRAIN_LOSS, ["acc", "train_loss", "loss"]) == "train_loss"
    assert alias_of(col.TRAIN_LOSS, ["acc"]) is None
    names = [name for canonical in ALIASES for name in ALIASES[canonical]]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("steps", [range(700), range(5000, 12000, 10)])
def test_a_spike_is_flagged_and_a_gap_is_not(tmp_path, steps, every):
    spike = steps[600]
    run = load(write_run(tmp_path / "r", losses(steps, spike=spike, every=every)))
    flags = find_flags(run)
    assert [(flag.step, flag.kinds) for flag in flags] == [(spike, ("loss",))]
    figures = summarise(run).figures
    assert "summary/first_nonfinite_step" not in figures
    assert (figures["summary/peak_loss"].value, figures["summary/peak_loss"].step) == (
        9.0,
        spike,
    )
    last = [step for row, step in enumerate(steps) if row % every == 0][-1]
    assert figures["summary/final_loss"].step == last
    jump = figures.get("summary/largest_loss_jump")
    assert (jump is not None) == (every == 1)  # else 70 losses, and 100 are needed
    assert draw_dashboard(run).startswith("<!doctype html>")


def test_a_measured_nan_is_flagged(tmp_path):
    rows = losses(range(0, 40, 2), every=2)
    rows[12][1]["loss"] = math.nan
    run = load(write_run(tmp_path / "r", rows))
    assert [flag.step for flag in find_flags(run)] == [24]
    assert summarise(run).figures["summary/first_nonfinite_step"].step == 24


def test_a_run_without_a_loss_is_drawn_and_summarised(tmp_path):
    run = load(write_run(tmp_path / "r", [(7, {"acc": 1.0}), (9, {"acc": 2.0})]))
    assert find_flags(run) == []
    assert summarise(run).figures.keys() == {"summary/flagged_steps"}
    assert "acc" in draw_dashboard(run)
    assert accounting_residual(run).tensors == []


def test_runs_are_compared_under_our_names(tmp_path):
    one = load(write_run(tmp_path / "a", losses(range(20), key="loss")))
    rows = losses(range(20), key="train_loss")
    rows[13][1]["train_loss"] += 1e-9
    other = load(write_run(tmp_path / "b", rows))
    found = first_difference(one, other)
    assert (found.step, found.columns, found.lone) == (13, (col.TRAIN_LOSS,), ())
    assert draw_comparison([one, other]).startswith("<!doctype html>")


def test_runs_with_other_steps_are_compared_up_to_where_they_part(tmp_path):
    one = load(write_run(tmp_path / "a", losses([0, 10, 20, 30])))
    other = load(write_run(tmp_path / "b", losses([0, 10, 25])))
    assert first_difference(one, other).common == 2
    assert draw_comparison([one, other]).startswith("<!doctype html>")


def test_a_check_of_a_window_of_steps_needs_every_step(tmp_path):
    check = check_from_plain(
        {
            "code": "VF001",
            "claim": "c",
            "kind": "max_in_window",
            "column": "loss",
            "window": [1, 3],
            "limit": 100.0,
        }
    )
    shifted = load(write_run(tmp_path / "a", losses(range(1, 9))))
    outcome = evaluate(check, shifted)
    assert (outcome.answer, outcome.reason) == (
        "inconclusive",
        "the steps of a are not 0, 1, 2, ...",
    )
    assert evaluate(
        check, load(write_run(tmp_path / "b", losses(range(9))))
    ).answer == ("passed")


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"summary_rules": []}, None),
        ({"summary_rules": [1]}, "manifest summary_rules: expected an object"),
        ({"summary_rules": {"a": "mean"}}, "summary of 'a': expected 'last'"),
        ({"summary": {"a": None}}, "manifest summary.a: expected a number or text"),
        ({"summary": {"a": True}}, "manifest summary.a: expected a number or text"),
    ],
)
def test_a_damaged_manifest_is_named(tmp_path, manifest, said):
    folder = write_run(tmp_path / "r", losses([0]), **manifest)
    if said is None:
        assert load(folder).logged.rules == {}
        return
    with pytest.raises(InputError, match=said):
        load(folder)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("last", (5.0, 9)), ("min", (-2.0, 3)), ("max", (5.0, 9)), ("at:3", (-2.0, 3))],
)
def test_rules(rule, expected):
    values, steps = np.array([np.inf, -2.0, np.nan, 5.0]), np.array([1, 3, 4, 9])
    assert summary_of(values, steps, parse_rule("k", rule)) == expected


def test_rules_that_find_nothing():
    none, one = np.empty(0), np.array([np.nan])
    steps = np.array([4])
    assert summary_of(none, none, Rule("last")) is None
    assert summary_of(one, steps, Rule("min")) is None
    assert summary_of(one, steps, Rule("at", 5)) is None
    assert math.isnan(summary_of(one, steps, Rule("last"))[0])
