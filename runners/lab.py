"""``autopsy lab``: train what the course's lab trains, and compare it with its text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.ema import ema
from analysis.history import RunHistory, load, read_manifest
from analysis.predictions import Scene, Verdict, judge
from minigpt.records import TRAIN_LOSS, InputError
from runners.closing import RunResult
from runners.compose import compose_config
from runners.config import RunConfig, config_hash
from runners.dashboard import attach_page, write_dashboard
from runners.execution import execute
from runners.folders import read_link, run_folders
from runners.manifest import code_hash
from runners.override_errors import CONF_DIR
from runners.override_syntax import quoted_value
from runners.progress import TrainingProgress
from runners.report import report_runs, say
from runners.spec import compose_run, read_spec
from runners.tracked import Place, find
from runners.tracker import Shipped, Tracker
from runners.verify import compute, pull_runs, show

# Without it the "no spike at K" of a fault in the optimizer reads like a finding.
_NOTE = """\
z: distance from the median of the 100 steps before, in MAD x 1.4826.
The loss of step K is taken before the update of step K: a fault in gradients (A) or in
optimizer state (C) cannot show in it before K + 1."""


def lab(root: Path, console: Console) -> int:
    """Train what is missing, then print what the runs say.

    Returns:
        0, also where a check failed: that is a finding. 1 if a run could not be
        completed in MLflow, or a page not attached to its run there.

    Raises:
        OSError: the root cannot be written.
    """
    plan = yaml.safe_load((CONF_DIR / "lab.yaml").read_text("utf-8"))
    place = f"paths.root={quoted_value(str(root))}"
    configs = [compose_config([*overrides, place]) for overrides in plan["runs"]]
    if not _train(configs, root, console):
        return 1
    place = Place(root)
    show(compute(read_spec(plan["verification"]), place), console)
    console.print(_predictions(plan["predictions"], place))
    say(console, _NOTE)
    say(console, _published_ema(plan["published_ema"], place))
    return 0 if _draw(configs, root, console) else 1


def _train(configs: Sequence[RunConfig], root: Path, console: Console) -> bool:
    """Train the runs that are not there yet; whether all are complete in MLflow."""
    present = _finished(root)
    reused = [present[key] for key in map(_identity, configs) if key in present]
    todo = [config for config in configs if _identity(config) not in present]
    for folder in reused:
        say(console, f"{folder}: reused (finished, same config and code)")
    untracked = [folder for folder in reused if not _complete(folder, root)]
    if not (todo or untracked):
        return True
    tracker = Tracker(configs[0].tracking, root)
    for folder in untracked:
        tracker.follow(folder)
    results: list[RunResult] = []
    shipped: list[Shipped] = []
    try:
        with TrainingProgress(console, len(todo)) as progress:
            for config in todo:
                execute(config, tracker, progress.on_step, on_end=results.append)
    finally:
        shipped = tracker.close()
        report_runs(console, results, shipped)
    return not any(answer.problem for answer in shipped)


def _draw(configs: Sequence[RunConfig], root: Path, console: Console) -> bool:
    """The dashboards of the lab's runs, the first of them in grey below the others.

    Returns:
        Whether all that are tracked are attached to their runs in MLflow.
    """
    folders, attached = _finished(root), True
    baseline = load(folders[_identity(configs[0])])
    for config in configs:
        folder = folders[_identity(config)]
        below = baseline if folder != baseline.folder else None
        page = write_dashboard(folder, below)
        say(console, str(page))
        try:
            attach_page(page, Place(root))
        except InputError as error:
            say(console, f"not attached to its run in MLflow: {error}")
            attached = False
    return attached


def _identity(config: RunConfig) -> tuple[str, str]:
    return config_hash(config), code_hash()


def _finished(root: Path) -> dict[tuple[str, str], Path]:
    """Hashes of config and code -> the finished run folder that has them."""
    found = {}
    for folder in run_folders(root):
        try:
            manifest = read_manifest(folder)
        except InputError:
            continue  # a foreign or damaged folder is no run to use again
        closed = manifest.get("status") == "finished" and manifest.get("record")
        resumes = manifest.get("resumes") or []
        # One whose replay differed from its record is the record of no config.
        if closed and not any(one.get("differs") for one in resumes):
            key = manifest.get("config_hash"), manifest.get("code_hash")
            # Of equal runs, that of the experiment's own name rather than another.
            if key not in found or folder.name == manifest.get("experiment"):
                found[key] = folder
    return found


def _complete(folder: Path, root: Path) -> bool:
    """Whether the run's curves and artifacts are in the store of the root."""
    try:
        link = read_link(folder)
        if not (link and link.get("complete")):
            return False
        run = find(link["run_id"], Place(root))
    except InputError:
        return False
    return run.info.lifecycle_stage == "active"


def _predictions(plan: dict[str, Any], place: Place) -> Table:
    """What the lab's page expects of each injection, beside what was measured."""
    twin, reference = pull_runs([plan["twin"], plan["reference"]], place)
    result = Table(title="The lab's predictions", title_justify="left", show_lines=True)
    result.add_column("run", no_wrap=True)
    for heading, ratio in (("prediction", 4), ("expected", 2), ("measured", 3)):
        result.add_column(heading, ratio=ratio)
    result.add_column("answer", no_wrap=True)
    for overrides in plan["runs"]:
        config = compose_run(overrides)
        [run] = pull_runs([overrides], place)
        scene = Scene(run, twin, reference, config.injection_step)
        for prediction in config.injection.predictions:
            verdict = judge(prediction, scene)
            result.add_row(
                escape(config.name or run.name),
                *map(escape, _verdict_cells(verdict)),
                _answer(verdict),
            )
    return result


def _verdict_cells(verdict: Verdict) -> tuple[str, str, str]:
    measured = verdict.note if verdict.measured is None else f"{verdict.measured:.4g}"
    return verdict.claim, verdict.expected, measured


def _answer(verdict: Verdict) -> str:
    return "[green]confirmed[/]" if verdict.confirmed else "[red]not confirmed[/]"


def _published_ema(plan: dict[str, Any], place: Place) -> str:
    step, runs = plan["step"], pull_runs(plan["runs"], place)
    values = ", ".join(f"{run.name} {_ema_at(run, step):.3f}" for run in runs)
    return (
        f"EMA-50 of the loss at step {step}: published {plan['value']}; "
        f"measured in the healthy runs: {values}"
    )


def _ema_at(run: RunHistory, step: int) -> float:
    return float(ema(run.scalar(TRAIN_LOSS)[: step + 1])[step])
