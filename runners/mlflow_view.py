"""The saved view: which columns and charts MLflow's run page opens with.

MLflow's UI keeps a saved view as a tag of the experiment, and opens it where an
address names it. The UI lists it as "Saved views", and a person may change it there;
what was changed is left alone.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from contextlib import suppress
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from analysis import summary as keys
from minigpt import records as col
from runners.curves import LOSS_EMA

VIEW = "loss-autopsy"
PREFIX = "mlflow.sharedViewState."
# Milliseconds, when this view was designed: a later design replaces an older one.
DESIGNED = 1_796_102_000_000

# The UI has two faces; the other one is for prompts and traces.
TRAINING = "&workflowType=machine_learning"

# Sorted by the time they began, MLflow folds the runs of a sweep under their parent;
# in any other order it shows every run.
_ORDER = "tags.`mlflow.runName`"

# What tells runs apart, in the order in which it is read; pixels, so that the whole
# name of a column can be read.
_COLUMNS = {
    "attributes.`Run Name`": 300,
    "tags.`injection`": 100,
    "tags.`clip`": 65,
    "tags.`loader`": 90,
    "tags.`seed`": 65,
    f"metrics.`{keys.FLAGGED}`": 170,
    f"metrics.`{keys.LARGEST_NORM}`": 200,
    f"metrics.`{keys.LARGEST_RESIDUAL}`": 190,
    f"metrics.`{keys.DUPLICATES}`": 220,
    f"metrics.`{keys.FINAL_LOSS}`": 145,
    f"metrics.`{keys.LOSS_JUMP}`": 190,
    f"metrics.`{keys.PEAK_LOSS}`": 145,
    f"metrics.`{keys.FIRST_NONFINITE}`": 210,
    "runDateAndNestInfo": 125,
    "duration": 90,
}
_ALWAYS_SHOWN = ("attributes.`Run Name`", "runDateAndNestInfo", "duration")
# The faults of this project hardly move the loss, so the numbers come before it.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "Summary": (
        keys.LARGEST_NORM,
        keys.LARGEST_RESIDUAL,
        keys.DUPLICATES,
        keys.FLAGGED,
        keys.LOSS_JUMP,
        keys.FINAL_LOSS,
        keys.PEAK_LOSS,
        keys.FIRST_NONFINITE,
    ),
    "Loss": (col.TRAIN_LOSS, LOSS_EMA, col.VAL_LOSS),
    "Gradients": (col.GRAD_NORM_PRECLIP, col.GRAD_NORM_POSTCLIP, col.UPDATE_NORM),
    "Batches": (col.TOKEN_LOSS_P99, col.RARE_TOKEN_MAX_COUNT, col.DUPLICATE_ROWS),
    "More": (col.LR, col.RELATIVE_UPDATE, col.VAL_LOSS_CAUSAL, col.FUTURE_LEAK),
}
_LOGARITHMIC = (col.GRAD_NORM_PRECLIP,)
EVERY_RUN = "tags.sweep_parent IS NULL"


def address(experiment_id: str, key: str = VIEW, charts: bool = False) -> str:
    """Where the UI opens a saved view, as a table or as charts."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment_id}/runs?viewStateShareKey={key}{mode}{TRAINING}"


def save_view(
    client: MlflowClient,
    experiment_id: str,
    key: str = VIEW,
    name: str = "All runs",
    runs: str = EVERY_RUN,
) -> None:
    """Give an experiment a view, unless it has it; without it the UI works as ever.

    Args:
        client: of the store.
        experiment_id: which experiment.
        key: what addresses call the view.
        name: what the UI lists it as.
        runs: MLflow filter of the runs that it shows.
    """
    with suppress(MlflowException):
        tag, tags = PREFIX + key, client.get_experiment(experiment_id).tags
        if not _is_current(tags.get(tag)):
            client.set_experiment_tag(experiment_id, tag, _envelope(name, runs))


def experiments_with_view(client: MlflowClient) -> list[tuple[str, str]]:
    """Name and id of the experiments that have the view of all runs."""
    found = client.search_experiments()
    return [(e.name, e.experiment_id) for e in found if PREFIX + VIEW in e.tags]


def _is_current(value: str | None) -> bool:
    try:
        return json.loads(value or "{}")["createdAt"] >= DESIGNED
    except (ValueError, KeyError, TypeError):
        return False


def _envelope(name: str, runs: str) -> str:
    """As the UI writes it; deflated, for some stores take 5000 characters a tag.

    The UI lists the newest view first, so that the view of the last sweep is on top.
    """
    now = DESIGNED if runs == EVERY_RUN else max(DESIGNED, int(time.time() * 1000))
    state = json.dumps(_state(runs), separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(state.encode(), 9)).decode()
    return json.dumps(
        {
            "name": name[:80],
            "createdAt": now,
            "updatedAt": now,
            "state": f"deflate;{packed}",
        }
    )


def _state(runs: str) -> dict[str, Any]:
    return {
        "searchFilter": runs,
        "orderByKey": _ORDER,
        "orderByAsc": True,
        "selectedColumns": [one for one in _COLUMNS if one not in _ALWAYS_SHOWN],
        "columnOrder": list(_COLUMNS),
        "columnWidths": _COLUMNS,
        "runsHiddenMode": "SHOW_ALL",  # the UI's own choice hides all but ten
        "compareRunCharts": [
            _card(section, key) for section, shown in _SECTIONS.items() for key in shown
        ],
        "compareRunSections": [
            {"uuid": section, "name": section, "display": True, "isReordered": True}
            for section in _SECTIONS
        ],
        "isAccordionReordered": True,
        "hideEmptyCharts": True,
    }


def _card(section: str, key: str) -> dict[str, Any]:
    card = {
        "uuid": key,
        "metricSectionId": section,
        "metricKey": key,
        "isGenerated": False,
        "deleted": False,
        "runsCountToCompare": 100,
    }
    if key in keys.SUMMARY_KEYS:
        return card | {"type": "BAR"}
    return card | {
        "type": "LINE",
        "selectedMetricKeys": [key],
        "scaleType": "log" if key in _LOGARITHMIC else "linear",
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "lineSmoothness": 0,
        "range": {},
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
