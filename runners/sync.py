"""``autopsy sync``: brings what the run folders hold and MLflow has not to MLflow.

The folders are the truth. Syncing again changes nothing: the points of a record are
always the same ones, with the times of their steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from analysis.history import read_manifest
from minigpt.records import InputError
from runners.folders import read_link
from runners.report import say
from runners.sync_plan import Plan, Target, plan_sync
from runners.tracked import Place

if TYPE_CHECKING:
    from runners.connection import Connection


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
    plan = plan_sync(references, place, dead, lambda line: say(console, line))
    for target in {**plan.todo, **plan.sweeps}:
        _ship(target, place.root, plan, console)
    for problem in plan.problems:
        say(console, f"not synced: {problem}")
    if plan.problems:
        plan.counts["not synced"] = len(plan.problems)
    counts = ", ".join(f"{count} {what}" for what, count in plan.counts.items())
    say(console, f"sync: {counts or 'no runs'}")
    return int(bool(plan.problems))


def _ship(target: Target, root: Path, plan: Plan, console: Console) -> None:
    """Ship the runs of one store and experiment that are not complete there."""
    from runners.connection import STORE_ERRORS, Connection
    from runners.store import first_line, give_up_early

    give_up_early()
    connection = Connection(*target, root)
    folders, sweeps = plan.todo.get(target, []), plan.sweeps.get(target, [])
    problem = "" if connection.ready() else connection.problem
    try:
        there = {} if problem else _complete_runs(connection)
    except STORE_ERRORS as error:
        problem = first_line(error)
    if problem:
        names = [folder.name for folder in (*folders, *sweeps)]
        plan.problems.append(f"{', '.join(names)}: {problem}")
        return
    missing = [folder for folder in folders if not _is_complete(folder, there)]
    plan.counts["complete already"] += len(folders) - len(missing)
    _ship_missing(connection, missing, sweeps, plan, console)


def _ship_missing(
    connection: Connection,
    missing: Sequence[Path],
    sweeps: Sequence[Path],
    plan: Plan,
    console: Console,
) -> None:
    from runners.shipper import Shipper

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


def _report(facts: dict[str, Any], plan: Plan, console: Console) -> None:
    folder = Path(facts["folder"]) if facts["folder"] else None
    if problem := facts.get("problem"):
        plan.problems.append(f"{folder.name}: {problem}" if folder else problem)
        return
    plan.counts["shipped now"] += 1
    say(console, f"{folder}: complete in MLflow, run {facts['run_id']}")


def _complete_runs(connection: Connection) -> dict[str, str | None]:
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
