"""``autopsy train``: its arguments are Hydra's, single run or ``--multirun``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from minigpt.records import InputError
from runners.closing import RunResult
from runners.compose import compose_config, expand_sweep
from runners.config import RunConfig
from runners.dashboard import write_dashboard
from runners.execution import check, execute
from runners.hydra_call import call_hydra, only_shows, parse_arguments
from runners.override_syntax import quoted_value
from runners.progress import TrainingProgress
from runners.report import report_runs, say
from runners.schema import from_hydra
from runners.signals import INTERRUPTS, exit_code
from runners.sweep import Sweep
from runners.tracker import Shipped, Tracker

_LEFT_ALONE = Shipped(None, problem="not waited for; the shipper goes on by itself")


def train(arguments: Sequence[str], console: Console) -> int:
    """Run Hydra with these arguments.

    Returns:
        Exit code: 0; 1 if a run failed or is incomplete in MLflow; 130 or 143 after
        a signal.

    Raises:
        InputError: a mistake in the arguments; nothing was made.
        OSError: the folder of the runs cannot be written.
    """
    arguments = _with_root(arguments)
    parsed = parse_arguments(arguments)
    if only_shows(parsed):
        if parsed.cfg or parsed.info:
            compose_config(parsed.overrides, parsed.config_dir)
        call_hydra(arguments)
        return 0
    multirun = parsed.multirun or "hydra.mode=MULTIRUN" in parsed.overrides
    configs = _validate(parsed.overrides, multirun, parsed.config_dir)
    root = Path(configs[0].paths.root)
    tracker = Tracker(configs[0].tracking, root)
    sweep = Sweep.create(root, parsed.overrides, configs) if multirun else None
    if sweep:
        folder = quoted_value(str(sweep.folder))
        arguments = [*arguments, f"hydra.sweep.dir={folder}"]
    with TrainingProgress(console, len(configs)) as progress:
        command = _Command(tracker, progress, sweep)
        code = command.run(arguments)
    report_runs(console, command.results, command.shipped)
    if command.page:
        say(console, str(command.page))
    if sweep:
        sweep.report(console)
    if command.error:
        raise command.error
    return code


@dataclass
class _Command:
    """What one ``autopsy train`` command has done so far.

    Attributes:
        results: one a run, however it ended.
        shipped: what became of them in MLflow.
        page: the dashboard of a single run; those of a sweep are drawn on demand.
        error: what ended a single run. It is kept from Hydra, which would print a
            line of its own about it, and raised again at the end.
    """

    tracker: Tracker
    progress: TrainingProgress
    sweep: Sweep | None
    results: list[RunResult] = field(default_factory=list)
    shipped: list[Shipped] = field(default_factory=list)
    page: Path | None = None
    error: Exception | None = None

    def run(self, arguments: Sequence[str]) -> int:
        """Let Hydra run the jobs, then wait for the shipper; the exit code."""
        code, sweep = 0, self.sweep
        if sweep:
            self.tracker.begin_sweep(sweep.id, sweep.title)
        try:
            call_hydra(arguments, self.job)
        except INTERRUPTS as interrupt:
            code = exit_code(interrupt)
        finally:
            if sweep:
                self.tracker.end_sweep(sweep.id, sweep.close(code))
            try:
                self.shipped = self.tracker.close()
            except INTERRUPTS as interrupt:
                code = exit_code(interrupt)
                self.shipped = [_LEFT_ALONE]
        incomplete = any(answer.problem for answer in self.shipped)
        return code or int(incomplete or bool(sweep and sweep.failures))

    def job(self, cfg: DictConfig) -> None:
        """One job of Hydra's; a failure is kept for the end and stops no other."""
        if self.sweep:
            with self.sweep.job():
                self._execute(cfg)
            return
        try:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise InputError("hydra.mode: a grid named in a file is run with -m")
            self._execute(cfg)
        except SystemExit as error:
            self.error = RuntimeError(f"a run called sys.exit({error.code!r})")
        except Exception as error:  # noqa: BLE001 - raised again by ``train``
            self.error = error

    def _execute(self, cfg: DictConfig) -> None:
        sweep = self.sweep
        result = execute(
            from_hydra(cfg),
            self.tracker,
            self.progress.on_step,
            sweep.id if sweep else None,
            self._ended,
        )
        if not sweep:
            self.page = write_dashboard(result.folder)
            self.tracker.attach(self.page)

    def _ended(self, result: RunResult) -> None:
        self.results.append(result)
        if self.sweep:
            self.sweep.ended(result)


def _with_root(arguments: Sequence[str]) -> list[str]:
    """The root of the environment, as for every other verb, unless one is given."""
    root = os.environ.get("AUTOPSY_ROOT")
    if not root or any(argument.startswith("paths.root=") for argument in arguments):
        return list(arguments)
    return [*arguments, f"paths.root={quoted_value(root)}"]


def _validate(
    overrides: list[str], multirun: bool, config_dir: str | None
) -> list[RunConfig]:
    """Every job's config, before the first one trains."""
    jobs = expand_sweep(overrides, config_dir) if multirun else [overrides]
    configs = [compose_config(job, config_dir) for job in jobs]
    for name in ("tracking", "paths"):
        if any(getattr(c, name) != getattr(configs[0], name) for c in configs):
            raise InputError(f"{name}: expected one choice for a whole sweep")
    for config in configs:
        check(config)
    return configs
