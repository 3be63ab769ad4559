"""What is written on a run in MLflow besides its points: params, tags, a colour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NOTE

PARENT = MLFLOW_PARENT_RUN_ID
NOTE = MLFLOW_RUN_NOTE
COLOR = "mlflow.runColor"  # read by MLflow's UI; no constant of its Python side
MAX_TAG = 5000  # characters of an error; MLflow takes 8000

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


def run_params(config: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The resolved config as dotted names and text; predictions are left out.

    A null is spelt ``null`` as on the command line, so that it can be searched.
    """
    for key, value in config.items():
        if key in ("predictions", "tracking", "paths"):
            continue
        if isinstance(value, dict):
            yield from run_params(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", "null" if value is None else str(value)


def run_tags(manifest: dict[str, Any]) -> dict[str, str]:
    """What people filter and group by: the choices, the seeds, the code, the sweep.

    The config does not say which file of conf/model was chosen, and its values may
    have been changed since; so the tag ``model`` holds the sizes themselves.
    """
    config, git = manifest["config"], manifest["git"]
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
        "git.commit": git["commit"],
        "git.dirty": None if git["dirty"] is None else str(git["dirty"]).lower(),
        "config_hash": manifest["config_hash"],
        "code_hash": manifest["code_hash"],
        COLOR: run_color(config["injection"]["kind"]),
    }
    return {key: value for key, value in tags.items() if value is not None}


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
