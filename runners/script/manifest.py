"""The manifest of a run that a script logs, and what is known of the script."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.history import MANIFEST_VERSION
from analysis.logged import LOGGED
from analysis.rule import RuleParameters
from runners.folders import iso_time, new_key
from runners.owner import owner
from runners.settings import TrackingConfig, redacted

if TYPE_CHECKING:  # a script without PyTorch can log as well
    import torch

    from minigpt.watch import Watch

_VERSIONS = ("torch", "numpy", "mlflow", "transformers", "lightning", "jax")


def open_logged(
    name: str,
    config: dict[str, Any],
    tracking: TrackingConfig,
    group: str | None = None,
    job_type: str | None = None,
    tags: Sequence[str] = (),
    notes: str | None = None,
) -> dict[str, Any]:
    """The manifest of a script's run that is about to begin.

    Args:
        name: of the run folder.
        config: plain JSON, checked.
        tracking: where the curves go; its experiment is the project.
        group: what belongs together, such as the seeds of one setting.
        job_type: such as "train" or "eval".
        tags: texts to find the run by.
        notes: anything a reader should know.
    """
    uri = tracking.uri and redacted(tracking.uri)
    return {
        "schema_version": MANIFEST_VERSION,
        "name": name,
        "kind": LOGGED,
        "key": new_key(),
        "experiment": None,
        "sweep": None,
        "status": "running",
        "started_at": iso_time(),
        "ended_at": None,
        "error": None,
        "owner": owner(),
        "config": config,
        "config_changes": [],
        "tracking": {
            "kind": tracking.kind,
            "uri": uri,
            "experiment": tracking.experiment,
        },
        "group": group,
        "job_type": job_type,
        "tags": [*tags],
        "notes": notes,
        "config_hash": None,
        "code_hash": None,
        "git": script_git(),
        "versions": _versions(),
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "threads": None,
        },
        "data": {},
        "facts": {},
        "summary_rules": {},
        "summary": {},
        "shipping_rule": RuleParameters().to_json(),
        "record": None,
        "resumes": [],
    }


def script_git() -> dict[str, Any]:
    """Commit and dirty flag of the working folder, or why they are not known."""
    try:
        commit, dirty = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    except (OSError, subprocess.SubprocessError) as error:
        return {"commit": None, "dirty": None, "reason": f"git: {error}"}
    return {"commit": commit, "dirty": bool(dirty), "reason": None}


def _git(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
        ["git", *arguments],  # noqa: S607 - the git that the user would call
        cwd=Path.cwd(),
        capture_output=True,
        text=True,
        check=True,
        timeout=10,  # a large tree on a slow disk is no reason not to begin
    )
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    """Python's, and those of the packages that the script has imported."""
    found = {"python": platform.python_version()}
    for name in _VERSIONS:
        if name in sys.modules:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue  # a module of that name that was not installed
    return found


def watched_facts(watch: Watch, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a watched module and its optimizer say of themselves.

    A number that the groups of parameters do not agree on is left out, and so is
    what nothing is known of, such as the clip and the schedule.
    """
    facts: dict[str, Any] = {"kind": type(optimizer).__name__.lower()}
    groups = optimizer.param_groups
    betas = _common([group.get("betas") for group in groups])
    if isinstance(betas, tuple | list) and len(betas) == 2:
        facts |= {"beta1": float(betas[0]), "beta2": float(betas[1])}
    for name in ("eps", "weight_decay"):
        value = _common([group.get(name) for group in groups])
        if isinstance(value, int | float) and not isinstance(value, bool):
            facts[name] = float(value)
    shapes = watch.reader.shapes
    return {
        "optimizer": facts,
        "tensors": {name: {"shape": list(shape)} for name, shape in shapes.items()},
        "sites": watch.sites,
    }


def _common(values: list[Any]) -> Any:
    """The one value of all of them, or None."""
    return values[0] if all(value == values[0] for value in values) else None
