"""A multirun as one thing: its id, its jobs and what became of each."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from minigpt.atomic import write_atomically
from runners.closing import RunResult, describe
from runners.config import RunConfig
from runners.folders import SWEEP_FILE, SWEEPS, make_root, new_key
from runners.manifest import public_config
from runners.naming import run_name
from runners.owner import owner
from runners.report import say
from runners.settings import redacted
from runners.signals import INTERRUPTS

_NO_CHOICE = ("paths.", "tracking.")  # where a sweep is kept is not what it varies


@dataclass
class Job:
    """One job of a sweep.

    Attributes:
        name: the run's name as asked for; the folder may carry a number more.
        folder: name of the run folder, once there is one.
        status: not started, running, finished, failed or killed.
        error: what ended it.
    """

    name: str
    folder: str | None = None
    status: str = "not started"
    error: str | None = None


class Sweep:
    """Jobs in the order in which they run; kept in a file as they go.

    Attributes:
        id: date and time, unique below the root.
        folder: where Hydra and this class write about the sweep.
        jobs: one entry a job.
        problem: what could not be written about the sweep, if anything.
    """

    def __init__(self, folder: Path, facts: dict[str, Any], jobs: list[Job]) -> None:
        self.id, self.folder, self.jobs = folder.name, folder, jobs
        self.problem: str | None = None
        self._facts = {"id": self.id, "status": "running", **facts}
        self._next = 0
        self._save()

    @classmethod
    def create(
        cls, root: Path, overrides: Sequence[str], configs: Sequence[RunConfig]
    ) -> Sweep:
        """Make the sweep's folder.

        Raises:
            InputError: the root is a file.
            OSError: the root cannot be written.
        """
        make_root(root)
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        number = 1
        while True:
            suffix = "" if number == 1 else f"-{number}"
            folder = root / SWEEPS / f"{stamp}{suffix}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
            else:
                break
        choices = (one for one in overrides if not one.startswith(_NO_CHOICE))
        facts = {
            "title": " ".join(redacted(choice) for choice in choices),
            "key": new_key(),
            "owner": owner(),
            "tracking": public_config(configs[0])["tracking"],
        }
        return cls(folder, facts, [Job(run_name(config)) for config in configs])

    @contextmanager
    def job(self) -> Iterator[None]:
        """Around one job: an error is kept with its traceback, a signal goes on."""
        if self._next == 0:
            # Hydra's copy of the command line may hold the password of a store.
            (self.folder / "multirun.yaml").unlink(missing_ok=True)
        job = self.jobs[self._next]
        self._next += 1
        job.status = "running"
        self._save()
        try:
            yield
        except INTERRUPTS:
            if job.status == "running":
                job.status = "killed"
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit of a job too
            # Hydra would stop the sweep at a SystemExit, with its code, even at 0.
            job.status, job.error = "failed", describe(error)
            log = f"{self._next - 1:04d}-{job.name}.log"
            self._write(log, traceback.format_exc())
        finally:
            self._save()

    def ended(self, result: RunResult) -> None:
        """The present job has left this result."""
        job = self.jobs[self._next - 1]
        job.folder, job.status = result.folder.name, result.status

    @property
    def failures(self) -> list[Job]:
        """Jobs that did not finish."""
        return [job for job in self.jobs if job.status != "finished"]

    def close(self, code: int) -> None:
        """Write the last state down, from which the parent run in MLflow is ended."""
        status = "failed" if self.failures else "finished"
        self._facts["status"] = "killed" if code else status
        self._save()

    def report(self, console: Console) -> None:
        """What became of the jobs, in as few lines as say it."""
        done = len(self.jobs) - len(self.failures)
        say(console, f"sweep {self.id}: {done} of {len(self.jobs)} runs finished")
        for job in self.failures:
            why = f": {' '.join(job.error.split())}" if job.error else ""
            say(console, f"  {job.folder or job.name}: {job.status}{why}")
        if self.problem:
            say(console, f"  not written: {self.problem}")

    def _save(self) -> None:
        document = self._facts | {"jobs": [asdict(job) for job in self.jobs]}
        self._write(SWEEP_FILE, json.dumps(document, indent=1))

    def _write(self, name: str, text: str) -> None:
        """Keep a file about the sweep; without room for it the jobs go on."""
        try:
            write_atomically(self.folder / name, text.encode())
        except OSError as error:
            self.problem = f"{self.folder / name}: {error.strerror}"
