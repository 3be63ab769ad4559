"""The training side of tracking: hands run folders to the shipper's process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.folders import make_root
from runners.settings import TrackingConfig, default_uri

# -P: packages of the working folder must not stand in for ours
WORTH_SAYING_SECONDS = 5.0
SILENT_SECONDS = 60.0
COMMAND = (sys.executable, "-P", "-m", "runners.shipper")


@dataclass(frozen=True)
class Shipped:
    """What became of one run in MLflow.

    Attributes:
        folder: the run folder; None if it is about the store or a sweep's parent.
        run_id: the MLflow run, if it is complete.
        points: steps whose values were shipped.
        problem: why it is not complete in MLflow, or None.
    """

    folder: Path | None
    run_id: str | None = None
    points: int = 0
    problem: str | None = None


class Tracker:
    """Starts the shipper and talks to it; without ``kind: mlflow`` it does nothing.

    The shipper is in a session of its own: a Ctrl-C meant for the training must not
    end it before the last points are in.

    Args:
        config: where the curves go; its uri may be None for the default file.
        root: the folder of all runs.

    Raises:
        InputError: the root is a file, or its name cannot be part of an address.
        OSError: the root cannot be written.
    """

    def __init__(self, config: TrackingConfig, root: Path) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._log = root / ".shipper.log"
        self._folders: list[Path] = []
        self._lines: list[str] = []
        if config.kind != "mlflow":
            return
        uri = config.uri or default_uri(root)
        make_root(root)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this project's module
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        first = {"uri": uri, "experiment": config.experiment}
        self._send(first | {"root": str(root.resolve())})

    def follow(self, folder: Path) -> None:
        """Track a run folder whose manifest is written."""
        self._folders.append(folder.resolve())
        self._send({"folder": str(folder.resolve())})

    def attach(self, path: Path) -> None:
        """Upload a file of a tracked run's folder, once the run is complete."""
        self._send({"attach": str(path.resolve())})

    def begin_sweep(self, folder: Path) -> None:
        """The runs of this sweep's folder get a parent run."""
        self._send({"sweep": str(folder.resolve())})

    def close(self, tell: Callable[[str], None] = lambda line: None) -> list[Shipped]:
        """Wait until the shipper is done; what became of each run.

        A shipper from which nothing is heard for a minute waits for a store that will
        not answer any more, and is ended.

        Args:
            tell: is given a line if the waiting takes long.

        Raises:
            KeyboardInterrupt, Terminated: while waiting; the shipper goes on.
        """
        if self._process is None:
            return []
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it is gone already; its exit code below says so
        reason = self._wait(tell)
        answers = [_shipped(line) for line in self._lines]
        if not reason:
            return answers
        done = {answer.folder for answer in answers}
        lost = [folder for folder in self._folders if folder not in done] or [None]
        return answers + [Shipped(folder, problem=reason) for folder in lost]

    def _wait(self, tell: Callable[[str], None]) -> str:
        """Until the shipper has ended; why it could not do its work, or nothing."""
        assert self._process
        self._reading.join(WORTH_SAYING_SECONDS)
        if self._reading.is_alive():
            tell("waiting for MLflow; what is recorded is safe")
        heard = -1
        while self._reading.is_alive() and heard < len(self._lines):
            heard = len(self._lines)
            self._reading.join(SILENT_SECONDS)
        if self._reading.is_alive():
            self._process.kill()
            self._reading.join()
            self._process.wait()
            return f"MLflow did not answer within {SILENT_SECONDS:.0f} seconds"
        code = self._process.wait()
        return f"the shipper ended with {code}, see {self._log}" if code else ""

    def _read(self) -> None:
        assert self._process
        assert self._process.stdout
        with self._process.stdout as stdout:
            # A killed shipper may leave a line without its end.
            for line in stdout:
                if line.endswith("\n"):
                    self._lines.append(line)

    def _send(self, message: dict[str, Any]) -> None:
        if self._process is None:
            return
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # training goes on; close() reports the shipper's end


def _shipped(line: str) -> Shipped:
    answer = json.loads(line)
    folder = answer["folder"]
    return Shipped(**answer | {"folder": None if folder is None else Path(folder)})
