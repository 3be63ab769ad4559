"""``autopsy train``: its arguments are Hydra's, single run or ``--multirun``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig
from rich.console import Console

from minigpt.records import InputError
from runners.compose import CONFIG_NAME, VERSION_BASE, compose_config, expand_sweep
from runners.config import RunConfig
from runners.execution import RunResult, Terminated, execute
from runners.override_errors import CONF_DIR
from runners.override_syntax import quoted_value
from runners.progress import TrainingProgress
from runners.schema import from_hydra
from runners.sweep import Sweep
from runners.tracker import Shipped, Tracker

_INTERRUPTS = {KeyboardInterrupt: 130, Terminated: 143}


@dataclass
class _Command:
    """What one ``autopsy train`` command has done so far."""

    tracker: Tracker
    progress: TrainingProgress
    sweep: Sweep | None
    results: list[RunResult] = field(default_factory=list)

    def job(self, cfg: DictConfig) -> None:
        """One job of Hydra's; a failure is kept for the end and stops no other."""
        config = from_hydra(cfg)
        sweep = self.sweep
        if sweep is None:
            result = execute(config, self.tracker, self.progress.on_step)
            self.results.append(result)
            return
        with sweep.job(config):
            result = execute(config, self.tracker, self.progress.on_step, sweep.id)
            self.results.append(result)
            sweep.finished(result)


def train(arguments: Sequence[str], console: Console) -> int:
    """Run Hydra with these arguments.

    Returns:
        Exit code: 0; 1 if a run failed or is incomplete in MLflow; 130 or 143 after
        a signal.

    Raises:
        InputError: a mistake in the arguments; nothing was made.
    """
    parsed = get_args_parser().parse_args(list(arguments))
    for option in ("config_name", "config_path"):
        if getattr(parsed, option):
            raise InputError(
                f"--{option.replace('_', '-')}: expected choices from conf/, and a "
                "folder of your own with --config-dir"
            )
    if any((parsed.help, parsed.hydra_help, parsed.cfg, parsed.info)):
        _call_hydra(arguments, lambda cfg: None)
        return 0
    multirun = parsed.multirun or "hydra.mode=MULTIRUN" in parsed.overrides
    configs = _validate(parsed.overrides, multirun, parsed.config_dir)
    root = Path(configs[0].paths.root)
    sweep = Sweep.create(root, parsed.overrides, configs) if multirun else None
    tracker = Tracker(configs[0].tracking, root)
    code = 0
    with TrainingProgress(console, len(configs)) as progress:
        command = _Command(tracker, progress, sweep)
        if sweep:
            tracker.begin_sweep(sweep.id, sweep.title)
            arguments = [
                *arguments,
                f"hydra.sweep.dir={quoted_value(str(sweep.folder))}",
            ]
        try:
            _call_hydra(arguments, command.job)
        except tuple(_INTERRUPTS) as signal_:
            code = _INTERRUPTS[type(signal_)]
        finally:
            if sweep:
                tracker.end_sweep(sweep.id, sweep.close(code))
            shipped = tracker.close()
    report(console, command.results, shipped)
    if sweep:
        sweep.report(console)
        code = code or (1 if sweep.failures else 0)
    return code or (1 if any(answer.problem for answer in shipped) else 0)


def _validate(
    overrides: list[str], multirun: bool, config_dir: str | None
) -> list[RunConfig]:
    """Every job's config, before the first one trains."""
    if not multirun:
        return [compose_config(overrides, config_dir)]
    jobs = expand_sweep(overrides, config_dir)
    configs = [compose_config(job, config_dir) for job in jobs]
    for name in ("tracking", "paths"):
        if any(getattr(c, name) != getattr(configs[0], name) for c in configs):
            raise InputError(f"{name}: expected one choice for a whole sweep")
    return configs


def _call_hydra(arguments: Sequence[str], task: object) -> None:
    """``hydra.main`` around a task, raising what the task or Hydra raises."""
    decorate = hydra.main(
        config_path=str(CONF_DIR), config_name=CONFIG_NAME, version_base=VERSION_BASE
    )
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["autopsy train", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, instead of printing and exiting
    try:
        decorate(task)()
    finally:
        sys.argv = before[0]
        del os.environ["HYDRA_FULL_ERROR"]
        if before[1] is not None:
            os.environ["HYDRA_FULL_ERROR"] = before[1]


def report(
    console: Console, results: Sequence[RunResult], shipped: Sequence[Shipped]
) -> None:
    """One line a run: what was recorded, and its id in MLflow."""
    answers = {answer.folder: answer for answer in shipped}
    for result in results:
        answer = answers.get(result.folder.resolve())
        line = (
            f"{result.folder}: {result.status}, {result.steps} steps, "
            f"final loss {result.final_loss:.4f}"
        )
        if answer and answer.run_id:
            line += f", MLflow run {answer.run_id} ({answer.points} points a curve)"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for answer in shipped:
        if answer.problem:
            what = answer.folder or "MLflow"
            line = f"{what}: recorded, but not complete in MLflow: {answer.problem}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
