"""What is written on a run in MLflow besides its points: params, tags, a colour."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlflow.utils.mlflow_tags import (
    MLFLOW_LOGGED_ARTIFACTS,
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NOTE,
)

from analysis.logged import LOGGED
from runners.script.alerts import read_alerts
from runners.script.files import ARTIFACTS, TABLES

PARENT = MLFLOW_PARENT_RUN_ID
NOTE = MLFLOW_RUN_NOTE
COLOR = "mlflow.runColor"  # read by MLflow's UI; no constant of its Python side
MAX_TAG = 5000  # characters of an error; MLflow takes 8000
MAX_KEY = 250  # of a tag's name, MLflow's own limit
MAX_TABLES = 40
_ENDS = ("before", "after")

# One colour a fault, the same in every sweep and for every eye: the palette of Okabe
# and Ito, which people with a colour vision deficiency can tell apart. Its yellow is
# left out, white paper swallows it.
_COLORS = {
    "none": "#555555",  # a lighter grey looks like the purple to a colour-blind eye
    "scale": "#d55e00",
    "bad_batch": "#0072b2",
    "v_corrupt": "#009e73",
    "rigged_order": "#cc79a7",
}
_OTHER_FAULT = "#56b4e9"
SWEEP_COLOR = "#e69f00"


def run_color(injection: str) -> str:
    """The colour of a fault's runs, in hex; one for all faults not known here."""
    return _COLORS.get(injection, _OTHER_FAULT)


def run_params(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The resolved config as dotted names and text; predictions are left out.

    A null is spelt ``null`` as on the command line, so that it can be searched. Of a
    run that a script logged nothing is left out.
    """
    left_out = ("predictions", "tracking", "paths")
    if manifest.get("kind") == LOGGED:
        left_out = ()
    yield from _params(manifest["config"], "", left_out)


def _params(
    config: dict[str, Any], prefix: str, left_out: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if key in left_out:
            continue
        if isinstance(value, dict):
            yield from _params(value, f"{prefix}{key}.", left_out)
        else:
            yield f"{prefix}{key}", "null" if value is None else str(value)


def run_tags(manifest: dict[str, Any]) -> dict[str, str]:
    """What people filter and group by: the choices, the seeds, the code, the sweep.

    The config does not say which file of conf/model was chosen, and its values may
    have been changed since; so the tag ``model`` holds the sizes themselves.
    """
    if manifest.get("kind") == LOGGED:
        return _logged_tags(manifest)
    config = manifest["config"]
    tags = {
        "injection": config["injection"]["kind"],
        "loader": config["loader"]["kind"],
        "model": " ".join(f"{key}={value}" for key, value in config["model"].items()),
        "optimizer": config["optimizer"]["kind"],
        "schedule": config["schedule"]["kind"],
        "precision": config["precision"]["dtype"],
        "clip": "null" if config["clip"] is None else str(config["clip"]),
        "seed": str(config["seed"]),
        "data_seed": str(config["data_seed"]),
        "experiment": manifest["experiment"],
        "sweep": manifest["sweep"],
        **_git_tags(manifest["git"]),
        "config_hash": manifest["config_hash"],
        "code_hash": manifest["code_hash"],
        COLOR: run_color(config["injection"]["kind"]),
    }
    return {key: value for key, value in tags.items() if value is not None}


def _git_tags(git: dict[str, Any]) -> dict[str, str | None]:
    dirty = git["dirty"]
    return {
        "git.commit": git["commit"],
        "git.dirty": None if dirty is None else str(dirty).lower(),
    }


def _logged_tags(manifest: dict[str, Any]) -> dict[str, str]:
    """What a script said its run is, and the code that it stands in."""
    named = manifest["tags"]
    tags = {
        "kind": LOGGED,
        "project": manifest["tracking"]["experiment"],
        "group": manifest["group"],
        "job_type": manifest["job_type"],
        "tags": ", ".join(named)[:MAX_TAG] or None,
        **{f"tag.{name}": "true" for name in named},
        **_git_tags(manifest["git"]),
    }
    return {key: value for key, value in tags.items() if value is not None}


def closing_tags(folder: Path, manifest: dict[str, Any]) -> dict[str, str]:
    """What a run has come to besides its numbers.

    Args:
        folder: the run folder; that of a script may have alerts and tables.
        manifest: of the closed run.
    """
    tags = {
        f"summary.{key}": value[:MAX_TAG]
        for key, value in (manifest.get("summary") or {}).items()
        if isinstance(value, str)
    }
    tags |= _changed(manifest.get("config_changes") or [])
    if alerts := read_alerts(folder):
        tags["alerts"] = str(len(alerts))
    tables = sorted((folder / ARTIFACTS / TABLES).glob("[!.]*.json"))
    if tables:  # MLflow lists these on the run's page, as far as a tag has room
        shown = [
            {"path": f"{ARTIFACTS}/{TABLES}/{path.name}", "type": "table"}
            for path in tables[:MAX_TABLES]
        ]
        tags[MLFLOW_LOGGED_ARTIFACTS] = json.dumps(shown)
    return tags


def _changed(changes: list[dict[str, Any]]) -> dict[str, str]:
    """Key of the config -> its values in the order in which it had them."""
    values: dict[str, list[str]] = {}
    for change in changes:
        texts = ["null" if change[at] is None else str(change[at]) for at in _ENDS]
        values.setdefault(change["key"], texts[:1]).append(texts[1])
    return {
        f"config_changed.{key}"[:MAX_KEY]: " -> ".join(texts)[:MAX_TAG]
        for key, texts in values.items()
    }


def sweep_tags(sweep: str, title: str) -> dict[str, str]:
    """The tags of a sweep's parent run.

    Args:
        sweep: its id.
        title: the overrides, which say what was swept.
    """
    return {
        "sweep": sweep,
        "sweep_parent": "true",
        "swept": title[:MAX_TAG],
        COLOR: SWEEP_COLOR,
    }
