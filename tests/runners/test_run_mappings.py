"""``run.config``, ``run.summary`` and ``log_histogram``."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.summary import summarise
from minigpt.records import InputError
from runners.script.histograms import MAX_BINS, histogram_of
from tests.runners.scripts import begin, manifest_of, measured, record_of


def test_config_is_kept_at_once_and_changes_are_told(tmp_path):
    run = begin(tmp_path, config={"lr": 1e-3, "model": {"d": 64, "old": 1}})
    run.log({"a": 1}, step=7)
    run.config["lr"] = 1e-4
    run.config.update({"model": {"d": 128}}, seed=3)
    found = manifest_of(run)
    assert found["config"] == {"lr": 1e-4, "model": {"d": 128}, "seed": 3}
    assert found["config_changes"] == [
        {"key": "lr", "before": 1e-3, "after": 1e-4, "step": 7},
        {"key": "model.d", "before": 64, "after": 128, "step": 7},
        {"key": "model.old", "before": 1, "after": None, "step": 7},
    ]
    assert dict(run.config["model"]) == {"d": 128}
    assert (len(run.config), list(run.config)) == (3, ["lr", "model", "seed"])
    run.finish()


def test_a_refused_value_changes_no_config(tmp_path):
    run = begin(tmp_path, config={"a": 1})
    with pytest.raises(InputError, match=r"config\.b: "):
        run.config.update({"a": 2, "b": math.nan})
    with pytest.raises(TypeError):
        run.config["a"]["x"] = 1
    assert manifest_of(run)["config"] == {"a": 1}
    run.finish()


RULES = {"low": "min", "high": "max", "end": "last", "third": "at:3"}


def test_the_summary_follows_its_rules_live_and_from_the_record(tmp_path):
    run = begin(tmp_path)
    for key, rule in RULES.items():
        run.define_metric(key, rule)
    assert manifest_of(run)["summary_rules"] == RULES
    values = [3.0, math.nan, 1.0, 2.0, -math.inf, 5.0, 4.0]
    for step, value in enumerate(values):
        run.log(dict.fromkeys(RULES, value), step=step)
    live = dict(run.summary)
    assert live == {"low": 1.0, "high": 5.0, "end": 4.0, "third": 2.0}
    run.finish()
    figures = summarise(record_of(run)).figures
    found = {key: figures[f"summary/{key}"] for key in RULES}
    assert {key: figure.value for key, figure in found.items()} == live
    assert [found[key].step for key in RULES] == [2, 5, 6, 3]


def test_what_a_rule_has_not_found_is_not_there(tmp_path):
    with begin(tmp_path) as run:
        run.define_metric("a", "at:9")
        run.define_metric("b", "min")
        run.log({"a": 1.0, "b": math.nan})
        with pytest.raises(KeyError):
            run.summary["a"]
        assert list(run.summary) == []
    assert not {"summary/a", "summary/b"} & summarise(record_of(run)).figures.keys()


def test_numbers_and_texts_are_put_into_the_summary_at_once(tmp_path):
    run = begin(tmp_path)
    run.log({"best": 1.0})
    run.summary["best"] = np.float32(0.5)
    run.summary["verdict"] = "good"
    assert manifest_of(run)["summary"] == {"best": 0.5, "verdict": "good"}
    assert dict(run.summary) == {"best": 0.5, "verdict": "good"}
    for value in (None, True, math.nan, [1]):
        with pytest.raises(InputError, match=r"^summary\.x: "):
            run.summary["x"] = value
    with pytest.raises(InputError, match=r"^key"):
        run.summary["a//b"] = 1
    run.finish()
    assert summarise(record_of(run)).figures["summary/best"].value == 0.5


@pytest.mark.parametrize("rule", ["mean", "at:", "at:-1", "at:1.5", "", None, 3])
def test_other_rules_are_refused(tmp_path, rule):
    with begin(tmp_path, mode="disabled") as run:
        with pytest.raises(InputError, match="summary of 'a': expected 'last'"):
            run.define_metric("a", rule)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.floats(width=64), min_size=1, max_size=60),
    st.integers(1, MAX_BINS),
)
def test_a_histogram_counts_every_finite_value_once(values, bins):
    counts, edges, odd = histogram_of("h", values, bins)
    finite = [value for value in values if math.isfinite(value)]
    assert counts.sum() == len(finite)
    assert odd == len(values) - len(finite)
    assert (counts.dtype, edges.dtype) == (np.uint32, np.float32)
    assert (len(counts), len(edges)) == (bins, bins + 1)
    assert (np.diff(edges.astype(np.float64)) > 0).all()
    assert np.isfinite(edges).all()


def test_a_histogram_puts_values_where_they_lie():
    counts, edges, _ = histogram_of("h", [0, 0.9, 1, 2.5, 4], 4)
    assert edges.tolist() == [0, 1, 2, 3, 4]
    assert counts.tolist() == [2, 1, 1, 1]


def test_histograms_are_columns_of_the_step_of_the_last_log(tmp_path):
    with begin(tmp_path) as run:
        run.log({"a": 1}, step=3)
        run.log_histogram("w/x", torch.arange(8.0), bins=4)
        run.log_histogram("w/x", np.array([1.0, math.nan, math.inf]), step=5, bins=2)
    found = record_of(run)
    assert found.steps.tolist() == [3, 5]
    counts, offsets = found.array("histogram/w/x/counts")
    assert (counts.tolist(), offsets.tolist()) == ([2, 2, 2, 2, 0, 1], [0, 4, 6])
    assert found.array("histogram/w/x/edges")[1].tolist() == [0, 5, 8]
    assert measured(found, "w/x/nonfinite") == {5: 2}


@pytest.mark.parametrize(
    ("values", "bins", "said"),
    [
        ([], 4, "h: expected an array of real numbers, got nothing"),
        (["a"], 4, "h: expected an array of real numbers"),
        ([1j], 4, "h: expected an array of real numbers"),
        ([True], 4, "h: expected an array of real numbers, got an array of bool"),
        (None, 4, "h: expected an array of real numbers"),
        ([[1, 2], [3]], 4, "h: expected an array of real numbers"),
        ([1.0], 0, "h: bins: expected 1 to 512, got 0"),
        ([1.0], 513, "h: bins: expected 1 to 512"),
        ([1.0], True, "h: bins: expected a whole number"),
        ([1.0], 2.0, "h: bins: expected a whole number"),
    ],
)
def test_what_is_no_histogram_is_refused(tmp_path, values, bins, said):
    with begin(tmp_path, mode="disabled") as run:
        with pytest.raises(InputError, match=f"^{said}"):
            run.log_histogram("h", values, bins=bins)
