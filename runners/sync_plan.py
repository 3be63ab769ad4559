"""Which run folders are to be synced, and to which store each of them belongs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.history import read_manifest
from minigpt.records import InputError
from runners.closing import close_killed
from runners.custody import held
from runners.folders import SWEEPS, last_sign, run_folders
from runners.owner import ALIVE, SILENT_SECONDS, UNKNOWN, liveness
from runners.references import resolve
from runners.settings import HIDDEN, default_uri
from runners.tracked import PULLED, Place

Target = tuple[str, str]  # address of the store, name of the experiment


@dataclass
class Plan:
    """What is to be done with which folder.

    Attributes:
        todo: run folders by the store and experiment that they belong to.
        sweeps: folders of sweeps, likewise.
        problems: what cannot be done, a line each.
        counts: what became of how many runs.
    """

    todo: dict[Target, list[Path]] = field(default_factory=dict)
    sweeps: dict[Target, list[Path]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def plan_sync(
    references: Sequence[str], place: Place, dead: bool, tell: Callable[[str], None]
) -> Plan:
    """Sort the run folders by where they belong; closes those of dead processes.

    Args:
        references: of runs; by default all below the root.
        place: the root, and a store other than the one that the runs name.
        dead: the runs' processes are known to be dead, though it cannot be told from
            here: they ran on another machine.
        tell: is given a line if a folder has to be waited for.

    Raises:
        InputError: a bad reference.
    """
    if dead and not references:
        raise InputError("--dead: expected the runs whose processes are known dead")
    plan = Plan()
    for folder in _folders(references, place):
        try:
            _choose(folder, plan, place, bool(references), dead, tell)
        except (InputError, OSError) as error:
            plan.problems.append(f"{folder.name}: {' '.join(str(error).split())}")
    if not references:
        _choose_sweeps(plan, place)
    return plan


def _folders(references: Sequence[str], place: Place) -> list[Path]:
    if not references:
        return run_folders(place.root)
    found = {folder: None for one in references for folder in resolve(one, place)}
    for folder in found:
        if folder.parent.name == PULLED:
            raise InputError(
                f"{folder.name}: expected a run folder of this machine, found a run "
                "that is only in MLflow"
            )
    return list(found)


def _choose(
    folder: Path,
    plan: Plan,
    place: Place,
    named: bool,
    dead: bool,
    tell: Callable[[str], None],
) -> None:
    """Put a folder where it belongs in the plan.

    Raises:
        InputError: it is damaged, or its run may be alive.
        OSError: it cannot be written.
    """
    manifest = read_manifest(folder)
    tracking = tracking_of(manifest)
    if tracking["kind"] == "none" and not named:
        plan.counts["not meant for MLflow (tracking=none)"] += 1
        return
    if manifest.get("status") == "running":
        lives = liveness(manifest.get("owner"), last_sign(folder))
        if lives == ALIVE:
            plan.counts["still training"] += 1
            return
        if lives == UNKNOWN:
            _close_foreign(folder, manifest, dead, tell)
    plan.todo.setdefault(_target(folder, tracking, place), []).append(folder)


def _close_foreign(
    folder: Path, manifest: dict[str, Any], dead: bool, tell: Callable[[str], None]
) -> None:
    """Close a run of whose process nothing can be told, if its user knows."""
    silent = time.time() - (last_sign(folder) or 0.0)
    host = (manifest.get("owner") or {}).get("host", "unknown")
    if not dead:
        raise InputError(
            f"whether it still trains on host {host} cannot be told from here; its "
            f"last sign of life is {_duration(silent)} old. If it is dead: "
            f"autopsy sync {folder.name} --dead"
        )
    if silent < SILENT_SECONDS:
        raise InputError(
            f"expected a dead run, found a sign of life {silent:.0f} s old"
        )
    with held(folder, tell):
        close_killed(folder, manifest)


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def tracking_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Where a run belongs in MLflow: kind, uri and experiment.

    Raises:
        InputError: the manifest does not say.
    """
    config = manifest.get("config")
    old = config.get("tracking") if isinstance(config, dict) else None
    tracking = manifest.get("tracking", old)
    if not (isinstance(tracking, dict) and {"kind", "experiment"} <= tracking.keys()):
        raise InputError(f"manifest tracking: expected kind, uri and experiment, found "
                         f"{tracking!r:.80}")  # fmt: skip
    return tracking


def _target(folder: Path, tracking: dict[str, Any], place: Place) -> Target:
    uri = place.uri or tracking.get("uri") or default_uri(folder.parent)
    if HIDDEN in uri:
        raise InputError(
            f"its store is {uri}, whose password is not kept; give it with --uri"
        )
    return uri, tracking["experiment"]


def _choose_sweeps(plan: Plan, place: Place) -> None:
    """Sweeps whose parent run has not been ended in MLflow, though they are over."""
    from runners.mlflow_sweep import is_closed, read_sweep

    for folder in sorted((place.root / SWEEPS).glob("*/")):
        try:
            document = read_sweep(folder)
            if document["status"] == "running" or is_closed(folder):
                continue
            if document["tracking"]["kind"] != "none":
                target = _target(folder.parent / "x", document["tracking"], place)
                plan.sweeps.setdefault(target, []).append(folder)
        except InputError as error:
            plan.problems.append(f"sweep {folder.name}: {error}")
