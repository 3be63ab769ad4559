"""A multirun as one thing: its id, its jobs and what became of each."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console

from minigpt.atomic import write_atomically
from runners.config import RunConfig, run_name
from runners.execution import RunResult, Terminated
from runners.folders import SWEEP_FILE, SWEEPS


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
        title: the overrides, for people.
        jobs: one entry a job.
    """

    def __init__(self, folder: Path, title: str, jobs: list[Job]) -> None:
        self.id, self.folder, self.title, self.jobs = folder.name, folder, title, jobs
        self._next = 0
        self._save()

    @classmethod
    def create(
        cls, root: Path, overrides: Sequence[str], configs: Sequence[RunConfig]
    ) -> Sweep:
        """Make the sweep's folder.

        Raises:
            OSError: the root cannot be written.
        """
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
        return cls(folder, " ".join(overrides), [Job(run_name(c)) for c in configs])

    @contextmanager
    def job(self, config: RunConfig) -> Iterator[None]:
        """Around one job: an error is kept with its traceback, a signal goes on."""
        job = self.jobs[self._next]
        self._next += 1
        job.status = "running"
        self._save()
        try:
            yield
        except (KeyboardInterrupt, Terminated):
            job.status = "killed"
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit of a job too
            # Hydra would stop the sweep at a SystemExit, with its code, even at 0.
            job.status, job.error = "failed", f"{type(error).__name__}: {error}"
            log = self.folder / f"{self._next - 1:04d}-{job.name}.log"
            log.write_text(traceback.format_exc())
        finally:
            self._save()

    def finished(self, result: RunResult) -> None:
        """The present job has left this result."""
        job = self.jobs[self._next - 1]
        job.folder, job.status = result.folder.name, result.status

    @property
    def failures(self) -> list[Job]:
        """Jobs that did not finish."""
        return [job for job in self.jobs if job.status != "finished"]

    def close(self, code: int) -> str:
        """Write the last state down; the status of the parent run in MLflow."""
        self._save()
        if code:
            return "KILLED"
        return "FAILED" if self.failures else "FINISHED"

    def report(self, console: Console) -> None:
        """What became of the jobs, in as few lines as say it."""
        done = len(self.jobs) - len(self.failures)
        console.print(
            f"sweep {self.id}: {done} of {len(self.jobs)} runs finished",
            highlight=False,
        )
        for job in self.failures:
            why = f": {job.error}" if job.error else ""
            console.print(f"  {job.name}: {job.status}{why}", markup=False)

    def _save(self) -> None:
        document = {
            "id": self.id,
            "title": self.title,
            "jobs": [asdict(job) for job in self.jobs],
        }
        text = json.dumps(document, indent=1)
        write_atomically(self.folder / SWEEP_FILE, text.encode())
