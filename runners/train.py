"""``autopsy train``: its arguments are Hydra's, single run or ``--multirun``."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from runners.references import resolve_one
from runners.report import report_runs, say
from runners.resume import resume
from runners.resume_plan import Resume, plan_resume
from runners.schema import from_hydra
from runners.signals import INTERRUPTS, exit_code
from runners.sweep import Sweep
from runners.tracked import PULLED, Place
from runners.tracker import Shipped, Tracker

_RESUME = "resume="
_LEFT_ALONE = Shipped(None, problem="not waited for; the shipper goes on by itself")


def train(arguments: Sequence[str], console: Console) -> int:
    """Run Hydra with these arguments.

    Returns:
        Exit code: 0; 1 if a run failed; 130 or 143 after a signal. What is not in
        MLflow yet is said in a line, and is a matter of ``autopsy sync``.

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
    if reference := _resumed(parsed.overrides):
        return _resume(reference, parsed, console)
    multirun = parsed.multirun or "hydra.mode=MULTIRUN" in parsed.overrides
    configs = _validate(parsed.overrides, multirun, parsed.config_dir)
    root = Path(configs[0].paths.root)
    tracker = Tracker(configs[0].tracking, root)
    sweep = Sweep.create(root, parsed.overrides, configs) if multirun else None
    if sweep:
        folder = quoted_value(str(sweep.folder))
        arguments = [*arguments, f"hydra.sweep.dir={folder}"]
    with TrainingProgress(console, len(configs)) as progress:
        command = _Command(tracker, progress, console, sweep)
        code = command.run(lambda: call_hydra(arguments, command.job))
    return command.report(code)


def _resumed(overrides: Sequence[str]) -> str | None:
    """The run that is to be gone on with, if any."""
    found = [one for one in overrides if one.startswith(_RESUME)]
    if len(found) > 1:
        raise InputError(f"resume: expected one run, got {len(found)}")
    reference = found[0].removeprefix(_RESUME).strip("'\"") if found else None
    if reference == "":
        raise InputError("resume: expected a run, got nothing")
    return reference


def _resume(reference: str, parsed: Namespace, console: Console) -> int:
    """Go on with a run instead of beginning one; the exit code."""
    if parsed.multirun:
        raise InputError("resume: expected without -m; a run is one run")
    overrides = [one for one in parsed.overrides if not one.startswith(_RESUME)]
    root = Path(compose_config(overrides, parsed.config_dir).paths.root)
    folder = resolve_one(reference, Place(root))
    if folder.parent.name == PULLED:
        raise InputError(
            f"resume: expected a run whose folder with its checkpoints is on this "
            f"machine, got {reference}, which is only in MLflow"
        )
    plan = plan_resume(folder, overrides, parsed.config_dir)
    tracker = Tracker(plan.config.tracking, folder.parent)
    with TrainingProgress(console, 1) as progress:
        command = _Command(tracker, progress, console)
        code = command.run(lambda: command.go_on(plan))
    return command.report(code)


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
    console: Console
    sweep: Sweep | None = None
    results: list[RunResult] = field(default_factory=list)
    shipped: list[Shipped] = field(default_factory=list)
    page: Path | None = None
    error: Exception | None = None

    def run(self, jobs: Callable[[], None]) -> int:
        """Do the jobs, then wait for the shipper; the exit code."""
        code, sweep = 0, self.sweep
        if sweep:
            self.tracker.begin_sweep(sweep.folder)
        try:
            jobs()
        except INTERRUPTS as interrupt:
            code = exit_code(interrupt)
        finally:
            if sweep:
                sweep.close(code)
            try:
                self.shipped = self.tracker.close(self._tell)
            except INTERRUPTS as interrupt:
                code = exit_code(interrupt)
                self.shipped = [_LEFT_ALONE]
        return code or int(bool(sweep and sweep.failures))

    def job(self, cfg: DictConfig) -> None:
        """One job of Hydra's; a failure is kept for the end and stops no other."""
        if self.sweep:
            with self.sweep.job():
                self._execute(cfg)
            return
        with self._kept():
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise InputError("hydra.mode: a grid named in a file is run with -m")
            self._draw(self._execute(cfg))

    def go_on(self, plan: Resume) -> None:
        """The rest of a run that ended early; as ``job`` for its failures."""
        with self._kept():
            self._draw(
                resume(
                    plan, self.tracker, self.progress.on_step, self._ended, self._tell
                )
            )

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except SystemExit as error:
            self.error = RuntimeError(f"a run called sys.exit({error.code!r})")
        except Exception as error:  # noqa: BLE001 - raised again by ``report``
            self.error = error

    def _execute(self, cfg: DictConfig) -> RunResult:
        return execute(
            from_hydra(cfg),
            self.tracker,
            self.progress.on_step,
            self.sweep.id if self.sweep else None,
            self._ended,
        )

    def _draw(self, result: RunResult) -> None:
        self.page = write_dashboard(result.folder)
        self.tracker.attach(self.page)

    def _ended(self, result: RunResult) -> None:
        self.results.append(result)
        if self.sweep:
            self.sweep.ended(result)

    def _tell(self, line: str) -> None:
        say(self.console, line)

    def report(self, code: int) -> int:
        """Say what became of the runs; the exit code, unless an error is raised."""
        report_runs(self.console, self.results, self.shipped)
        if self.page:
            say(self.console, str(self.page))
        if self.sweep:
            self.sweep.report(self.console)
        if self.error:
            raise self.error
        return code


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
