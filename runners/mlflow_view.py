"""The saved view: which columns and charts MLflow's run page opens with.

MLflow's UI keeps a saved view as a tag of the experiment, and opens it where an
address names it. The UI lists it as "Saved views", and a person may change it there;
what was changed is left alone.
"""

from __future__ import annotations

import base64
import json
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
DESIGNED = 1_764_500_000_000

# The UI has two faces; the other one is for prompts and traces.
TRAINING = "&workflowType=machine_learning"

# Sorted by the time they began, MLflow folds the runs of a sweep under their parent;
# in any other order it shows every run.
NEWEST_FIRST = ("attributes.end_time", False)
BY_NAME = ("tags.`mlflow.runName`", True)

# What tells runs apart, in the order in which it is read.
_COLUMNS = (
    *(f"tags.`{name}`" for name in ("injection", "clip", "loader", "seed")),
    *(f"metrics.`{key}`" for key in keys.SUMMARY_KEYS),
)
_SECTIONS: dict[str, tuple[str, ...]] = {
    "Loss": (col.TRAIN_LOSS, LOSS_EMA, col.VAL_LOSS),
    "Gradients": (col.GRAD_NORM_PRECLIP, col.GRAD_NORM_POSTCLIP, col.UPDATE_NORM),
    "Summary": keys.SUMMARY_KEYS,
    "Batches": (col.TOKEN_LOSS_P99, col.RARE_TOKEN_MAX_COUNT, col.DUPLICATE_ROWS),
    "More": (col.LR, col.RELATIVE_UPDATE, col.VAL_LOSS_CAUSAL, col.FUTURE_LEAK),
}
_LOGARITHMIC = (col.GRAD_NORM_PRECLIP,)
EVERY_RUN = "tags.injection LIKE '%'"  # parents of sweeps have no such tag


def address(experiment_id: str, key: str = VIEW, charts: bool = False) -> str:
    """Where the UI opens a saved view, as a table or as charts."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"#/experiments/{experiment_id}/runs?viewStateShareKey={key}{mode}{TRAINING}"


def save_view(
    client: MlflowClient,
    experiment_id: str,
    key: str = VIEW,
    name: str = "Compare runs",
    runs: str = EVERY_RUN,
    order: tuple[str, bool] = NEWEST_FIRST,
) -> None:
    """Give an experiment a view, unless it has it; without it the UI works as ever.

    Args:
        client: of the store.
        experiment_id: which experiment.
        key: what addresses call the view.
        name: what the UI lists it as.
        runs: MLflow filter of the runs that it shows.
        order: the column to sort by, and whether upwards.
    """
    with suppress(MlflowException):
        tag, tags = PREFIX + key, client.get_experiment(experiment_id).tags
        if not _is_current(tags.get(tag)):
            client.set_experiment_tag(experiment_id, tag, _envelope(name, runs, order))


def experiments_with_view(client: MlflowClient) -> list[tuple[str, str]]:
    """Name and id of the experiments that have the view of all runs."""
    found = client.search_experiments()
    return [(e.name, e.experiment_id) for e in found if PREFIX + VIEW in e.tags]


def _is_current(value: str | None) -> bool:
    try:
        return json.loads(value or "{}")["createdAt"] >= DESIGNED
    except (ValueError, KeyError, TypeError):
        return False


def _envelope(name: str, runs: str, order: tuple[str, bool]) -> str:
    """As the UI writes it; deflated, for some stores take 5000 characters a tag."""
    state = json.dumps(_state(runs, order), separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(state.encode(), 9)).decode()
    return json.dumps(
        {
            "name": name[:80],
            "createdAt": DESIGNED,
            "updatedAt": DESIGNED,
            "state": f"deflate;{packed}",
        }
    )


def _state(runs: str, order: tuple[str, bool]) -> dict[str, Any]:
    return {
        "searchFilter": runs,
        "orderByKey": order[0],
        "orderByAsc": order[1],
        "selectedColumns": list(_COLUMNS),
        "columnOrder": [],
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
