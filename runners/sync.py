"""``autopsy sync``: brings what the run folders hold and MLflow has not to MLflow.

The folders are the truth. Syncing again changes nothing: the points of a record are
always the same ones, with the times of their steps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from analysis.history import read_manifest
from minigpt.records import InputError
from runners.closing import close_killed
from runners.custody import held
from runners.folders import SWEEPS, last_sign, read_link, run_folders
from runners.owner import ALIVE, SILENT_SECONDS, UNKNOWN, liveness
from runners.references import resolve
from runners.report import say
from runners.settings import HIDDEN, default_uri
from runners.tracked import PULLED, Place

Target = tuple[str, str]  # address of the store, name of the experiment


@dataclass
class _Plan:
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


def sync(references: Sequence[str], place: Place, dead: bool, console: Console) -> int:
    """Ship what is missing.

    Args:
        references: of runs; by default all below the root.
        place: the root, and a store other than the one that the runs name.
        dead: the runs' processes are known to be dead, though it cannot be told from
            here: they run on another machine.
        console: gets a line for each run that was shipped or cannot be.

    Returns:
        0; 1 if something could not be shipped.

    Raises:
        InputError: a bad reference.
    """
    if dead and not references:
        raise InputError("--dead: expected the runs whose processes are known dead")
    folders = _folders(references, place)
    plan = _Plan()
    for folder in folders:
        try:
            _choose(folder, plan, place, bool(references), dead, console)
        except (InputError, OSError) as error:
            plan.problems.append(f"{folder.name}: {' '.join(str(error).split())}")
    if not references:
        _choose_sweeps(plan, place)
    for target in {**plan.todo, **plan.sweeps}:
        _ship(target, plan, console)
    for problem in plan.problems:
        say(console, f"not synced: {problem}")
    counts = ", ".join(f"{count} {what}" for what, count in plan.counts.items())
    say(console, f"sync: {counts or 'no runs'}")
    return int(bool(plan.problems))


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
    folder: Path, plan: _Plan, place: Place, named: bool, dead: bool, console: Console
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
            _close_foreign(folder, manifest, dead, console)
    plan.todo.setdefault(_target(folder, tracking, place), []).append(folder)


def _close_foreign(
    folder: Path, manifest: dict[str, Any], dead: bool, console: Console
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
    with held(folder, lambda line: say(console, line)):
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


def _choose_sweeps(plan: _Plan, place: Place) -> None:
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


def _ship(target: Target, plan: _Plan, console: Console) -> None:
    """Ship the runs of one store and experiment that are not complete there."""
    from runners.connection import Connection
    from runners.shipper import Shipper
    from runners.store import give_up_early

    give_up_early()
    connection = Connection(*target)
    folders, sweeps = plan.todo.get(target, []), plan.sweeps.get(target, [])
    if not connection.ready():
        names = [folder.name for folder in (*folders, *sweeps)]
        plan.problems.append(f"{', '.join(names)}: {connection.problem}")
        return
    there = _complete_runs(connection)
    missing = [folder for folder in folders if not _is_complete(folder, there)]
    missing = _with_siblings(missing, folders)
    plan.counts["complete already"] += len(folders) - len(missing)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("sync", total=len(missing))

        def answer(facts: dict[str, Any]) -> None:
            bar.advance(task)
            _report(facts, plan, console)

        shipper = Shipper(connection, answer)
        for folder in missing:
            shipper.take({"folder": str(folder)})
        for folder in sweeps:
            shipper.take({"sweep": str(folder)})
        shipper.end()


def _report(facts: dict[str, Any], plan: _Plan, console: Console) -> None:
    folder = Path(facts["folder"]) if facts["folder"] else None
    if problem := facts.get("problem"):
        plan.problems.append(f"{folder.name}: {problem}" if folder else problem)
        return
    plan.counts["shipped now"] += 1
    points = f"{facts['points']} points a curve"
    say(console, f"{folder}: MLflow run {facts['run_id']} ({points})")


def _complete_runs(connection: Any) -> dict[str, str | None]:
    """Id -> hash of the record, of the experiment's runs that have ended."""
    found, token = {}, None
    while token != "":
        page = connection.client.search_runs(
            [connection.experiment_id], max_results=1000, page_token=token
        )
        for run in page:
            if run.info.status != "RUNNING":
                found[run.info.run_id] = run.data.tags.get("record_sha256")
        token = page.token or ""
    return found


def _is_complete(folder: Path, there: dict[str, str | None]) -> bool:
    """Whether MLflow has all of a run; what cannot be read is left to the shipper."""
    try:
        link, manifest = read_link(folder), read_manifest(folder)
    except InputError:
        return False
    if not (link and link.get("complete") and link["run_id"] in there):
        return False
    record = manifest.get("record") or {}
    return there[link["run_id"]] == record.get("sha256")


def _with_siblings(missing: Iterable[Path], folders: Sequence[Path]) -> list[Path]:
    """Also the other runs of their sweeps: the note of the parent names them all."""
    wanted = set(missing)
    sweeps = {read_manifest(folder).get("sweep") for folder in wanted} - {None}
    return [
        folder
        for folder in folders
        if folder in wanted or read_manifest(folder).get("sweep") in sweeps
    ]
