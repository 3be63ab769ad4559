"""The training side of tracking: hands run folders to the shipper's process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.settings import TrackingConfig


@dataclass(frozen=True)
class Shipped:
    """What became of one run in MLflow.

    Attributes:
        folder: the run folder; None if the store itself could not be used.
        run_id: the MLflow run, if there is one.
        points: steps whose values were shipped.
        problem: why the run is not complete in MLflow, or None.
    """

    folder: Path | None
    run_id: str | None = None
    points: int = 0
    problem: str | None = None


class Tracker:
    """Starts the shipper and talks to it; with ``kind: none`` it does nothing.

    The shipper is in a session of its own: a Ctrl-C meant for the training must not
    end it before the last points are in.

    Args:
        config: where the curves go; its uri may be None for the default file.
        root: the folder of all runs.
    """

    def __init__(self, config: TrackingConfig, root: Path) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._log = root / ".shipper.log"
        if config.kind == "none":
            return
        root.mkdir(parents=True, exist_ok=True)
        uri = config.uri or f"sqlite:///{root.resolve() / 'mlflow.db'}"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "runners.shipper"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._send({"uri": uri, "experiment": config.experiment})

    def follow(self, folder: Path) -> None:
        """Track a run folder whose manifest is written."""
        self._send({"folder": str(folder.resolve())})

    def begin_sweep(self, sweep: str, name: str) -> None:
        """The runs of this sweep get a parent run of this name."""
        self._send({"sweep": sweep, "name": name})

    def end_sweep(self, sweep: str, status: str) -> None:
        """Close the parent run as FINISHED, FAILED or KILLED."""
        self._send({"sweep": sweep, "status": status})

    def close(self) -> list[Shipped]:
        """Wait until the shipper is done; what became of each run."""
        if self._process is None:
            return []
        output = self._finish(self._process)
        answers = [Shipped(**_paths(json.loads(line))) for line in output.splitlines()]
        if self._process.returncode and not any(a.problem for a in answers):
            reason = f"the shipper ended with {self._process.returncode}: {self._log}"
            answers.append(Shipped(None, problem=reason))
        return answers

    def _finish(self, process: subprocess.Popen[str]) -> str:
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass  # it is gone already; its exit code below says so
        with process.stdout as stdout:
            output = stdout.read()
        process.wait()
        return output

    def _send(self, message: dict[str, Any]) -> None:
        if self._process is None:
            return
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # training goes on; close() reports the shipper's end


def _paths(answer: dict[str, Any]) -> dict[str, Any]:
    folder = answer["folder"]
    return answer | {"folder": None if folder is None else Path(folder)}
