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
from analysis.history import RunHistory, read_manifest
from analysis.predictions import Scene, Verdict, judge
from minigpt.records import TRAIN_LOSS
from runners.compose import compose_config
from runners.config import RunConfig, config_hash, run_name
from runners.execution import RunResult, execute
from runners.folders import MLFLOW, run_folders
from runners.manifest import code_hash
from runners.override_errors import CONF_DIR
from runners.progress import TrainingProgress
from runners.references import Place
from runners.tracker import Tracker
from runners.train import report
from runners.verify import compute, pull_runs, read_spec, table

Runs = Sequence[Sequence[str]]


def lab(root: Path, console: Console) -> int:
    """Train what is missing, then print what the runs say.

    Returns:
        0, also where a check failed: that is a finding. 1 if a run could not be
        completed in MLflow.
    """
    plan = yaml.safe_load((CONF_DIR / "lab.yaml").read_text())
    configs = [
        compose_config([*overrides, f"paths.root={root}"]) for overrides in plan["runs"]
    ]
    if not _train(configs, root, console):
        return 1
    place = Place(root)
    spec = read_spec(plan["verification"])
    console.print(table(spec, compute(spec, place)))
    console.print(_predictions(plan["predictions"], place))
    console.print(_published_ema(plan["published_ema"], place), highlight=False)
    return 0


def _train(configs: Sequence[RunConfig], root: Path, console: Console) -> bool:
    """Train the runs that are not there yet; whether all are complete in MLflow."""
    present = {_identity(read_manifest(f)): f for f in _finished(root)}
    todo, untracked = [], []
    for config in configs:
        folder = present.get((config_hash(config), code_hash()))
        if folder is None:
            todo.append(config)
            continue
        console.print(
            f"{run_name(config)}: reused {folder} (finished, same config and code)",
            highlight=False,
            soft_wrap=True,
        )
        if not (folder / MLFLOW).is_file():
            untracked.append(folder)
    if not (todo or untracked):
        return True
    tracker = Tracker(configs[0].tracking, root)
    for folder in untracked:
        tracker.follow(folder)
    results: list[RunResult] = []
    try:
        with TrainingProgress(console, len(todo)) as progress:
            results = [execute(config, tracker, progress.on_step) for config in todo]
    finally:
        shipped = tracker.close()
    report(console, results, shipped)
    return not any(answer.problem for answer in shipped)


def _finished(root: Path) -> list[Path]:
    folders = run_folders(root)
    return [f for f in folders if read_manifest(f)["status"] == "finished"]


def _identity(manifest: dict[str, Any]) -> tuple[str, str]:
    return manifest["config_hash"], manifest["code_hash"]


def _predictions(plan: dict[str, Any], place: Place) -> Table:
    """What the lab's page expects of each injection, beside what was measured."""
    twin, reference = pull_runs([plan["twin"], plan["reference"]], place)
    result = Table(title="The lab's predictions", title_justify="left", show_lines=True)
    result.add_column("run", no_wrap=True)
    for heading, ratio in (("prediction", 4), ("expected", 2), ("measured", 3)):
        result.add_column(heading, ratio=ratio)
    result.add_column("answer", no_wrap=True)
    for overrides in plan["runs"]:
        config = compose_config(overrides)
        [run] = pull_runs([overrides], place)
        scene = Scene(run, twin, reference, config.injection_step)
        for prediction in config.injection.predictions:
            verdict = judge(prediction, scene)
            result.add_row(
                escape(run.name),
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
