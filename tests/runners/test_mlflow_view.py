"""The saved view: a tag of the experiment that MLflow's UI reads."""

from __future__ import annotations

import base64
import json
import zlib

import pytest
from mlflow.exceptions import MlflowException

from analysis.summary import SUMMARY_KEYS
from runners.curves import CADENCE_CURVES, CURVES, LOSS_EMA
from runners.mlflow_view import DESIGNED, PREFIX, VIEW, address, save_view

TAG = PREFIX + VIEW


def state_of(value: str) -> dict:
    """What the UI unpacks."""
    mark, _, packed = json.loads(value)["state"].partition(";")
    assert mark == "deflate"
    return json.loads(zlib.decompress(base64.b64decode(packed)))


@pytest.fixture
def tags(store):
    save_view(store, "1")
    return store.experiment_tags


def test_the_view_is_what_the_ui_takes_for_one(tags):
    assert TAG == "mlflow.sharedViewState.loss-autopsy"
    view = json.loads(tags[TAG])
    assert isinstance(view["name"], str)
    assert type(view["createdAt"]) is type(view["updatedAt"]) is int
    assert len(tags[TAG]) < 5000


def test_it_shows_what_tells_runs_apart(tags):
    state = state_of(tags[TAG])
    wanted = {f"tags.`{name}`" for name in ("injection", "clip", "loader", "seed")}
    wanted |= {f"metrics.`{key}`" for key in SUMMARY_KEYS}
    assert set(state["selectedColumns"]) == wanted
    assert state["columnOrder"][0] == "attributes.`Run Name`"
    assert wanted < set(state["columnOrder"]) == state["columnWidths"].keys()
    assert state["runsHiddenMode"] == "SHOW_ALL"
    # sorted by start time, MLflow would fold the runs of a sweep under their parent
    assert state["orderByKey"] == "tags.`mlflow.runName`"


def test_every_metric_has_one_chart_and_summaries_are_bars(tags):
    state = state_of(tags[TAG])
    charts = {card["metricKey"]: card["type"] for card in state["compareRunCharts"]}
    curves = {*CURVES, *CADENCE_CURVES, LOSS_EMA}
    assert len(charts) == len(state["compareRunCharts"])
    assert charts == dict.fromkeys(curves, "LINE") | dict.fromkeys(SUMMARY_KEYS, "BAR")
    sections = {section["uuid"] for section in state["compareRunSections"]}
    assert {card["metricSectionId"] for card in state["compareRunCharts"]} == sections


def test_a_view_that_somebody_changed_is_left_alone(tags, store):
    changed = json.loads(tags[TAG]) | {"state": "{}", "updatedAt": DESIGNED + 1}
    tags[TAG] = json.dumps(changed)
    save_view(store, "1")
    assert json.loads(tags[TAG]) == changed


@pytest.mark.parametrize(
    "old",
    ["", "{", "[]", "null", '{"createdAt": "x"}', f'{{"createdAt": {DESIGNED - 1}}}'],
)
def test_an_older_or_damaged_view_is_replaced(tags, store, old):
    new, tags[TAG] = tags[TAG], old
    save_view(store, "1")
    assert tags[TAG] == new


def test_a_store_that_takes_no_view_is_no_reason_to_stop(store):
    def refuse(*_):
        raise MlflowException("read only")

    store.set_experiment_tag = refuse
    save_view(store, "1")
    assert store.experiment_tags == {}


def test_a_view_of_some_runs_is_listed_before_that_of_all(tags, store):
    save_view(store, "1", "sweep-s", "Sweep s", "tags.sweep = 's'")
    view = tags[PREFIX + "sweep-s"]
    assert state_of(view)["searchFilter"] == "tags.sweep = 's'"
    assert json.loads(view)["createdAt"] >= json.loads(tags[TAG])["createdAt"]


def test_addresses():
    table = "#/experiments/1/runs?viewStateShareKey=loss-autopsy"
    assert address("1") == f"{table}&workflowType=machine_learning"
    assert "&compareRunsMode=CHART&" in address("1", charts=True)
