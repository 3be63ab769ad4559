"""The shipper: a process that reads run folders and writes MLflow.

It follows the journals while the runs train, so that a training process never waits
for a tracker and need not import one. It takes one JSON object a line on standard
input and answers with one line once a run is complete in MLflow. It ends after the
last run once its input has ended, which also happens when the training process is
killed; a run that has not ended by then was killed. The messages, after a first
{"uri": ..., "experiment": ...}:

    {"folder": ...}                  follow this run folder
    {"attach": ...}                  upload this file of a run folder at the end
    {"sweep": id, "name": ...}       a sweep begins: its runs get a parent
    {"sweep": id, "status": ...}     it ends
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from mlflow.exceptions import MlflowException

from analysis.history import read_manifest
from minigpt.records import InputError
from runners.attachment import attach_file
from runners.folders import read_link
from runners.follower import RunFollower
from runners.mlflow_run import MlflowRun
from runners.mlflow_sweep import SweepRun
from runners.mlflow_view import save_view
from runners.settings import redacted
from runners.store import ensure_experiment, first_line, open_store

POLL_SECONDS = 0.5


class Shipper:
    """All the runs of one training process.

    What fails while runs are still to come (a store that is busy or away for a
    moment) is tried once more at the end, from the first point on; MLflow drops
    what it has already.

    Args:
        uri: the store.
        experiment: the MLflow experiment new runs go to.
        output: where the answers go.
    """

    def __init__(self, uri: str, experiment: str, output: TextIO) -> None:
        self._uri, self._output = redacted(uri), output
        self._client = open_store(uri)
        self._experiment_id = ensure_experiment(self._client, uri, experiment)
        save_view(self._client, self._experiment_id)
        self._open: list[RunFollower] = []
        self._again: list[Path] = []
        self._files: list[Path] = []
        self._sweeps: dict[str, SweepRun] = {}
        self._ended = False

    def take(self, message: dict[str, Any]) -> None:
        """Follow a run folder, or begin or end a sweep, as the message says."""
        if "attach" in message:
            self._files.append(Path(message["attach"]))
        elif "folder" in message:
            folder = Path(message["folder"])
            self._guarded(folder, lambda: self._follow(folder))
        elif "status" in message:
            self._guarded(None, lambda: self._end_sweep(**message))
        else:
            self._guarded(None, lambda: self._begin_sweep(**message))

    def _follow(self, folder: Path) -> None:
        manifest = read_manifest(folder)
        sweep = self._sweeps.get(manifest["sweep"])
        run = MlflowRun(
            self._client,
            self._uri,
            self._experiment_id,
            folder,
            manifest,
            sweep and sweep.run_id,
        )
        if sweep:
            sweep.add(run)
        self._open.append(RunFollower(folder, run, manifest))

    def _begin_sweep(self, sweep: str, name: str) -> None:
        run = SweepRun(self._client, self._experiment_id, sweep, name)
        self._sweeps[sweep] = run

    def _end_sweep(self, sweep: str, status: str) -> None:
        if sweep in self._sweeps:
            self._sweeps[sweep].end(status)

    def advance(self) -> None:
        """One round over all open runs."""
        for follower in list(self._open):
            going = self._guarded(
                follower.folder, lambda f=follower: f.advance(self._ended)
            )
            if follower.done:
                self._answer(
                    follower.folder, run_id=follower.run.run_id, points=follower.points
                )
            if follower.done or not going:
                self._open.remove(follower)

    def end(self) -> None:
        """The input has ended: no run goes on. Close what is still open."""
        self._ended = True
        for folder in self._again:
            self._guarded(folder, lambda f=folder: self._follow(f))
        while self._open:
            self.advance()
        for path in self._files:
            self._guarded(None, lambda p=path: self._attach(p))
        for sweep in self._sweeps.values():
            self._guarded(None, sweep.close)

    def _attach(self, path: Path) -> None:
        link = read_link(path.parent)
        if link:  # else its run is answered as not complete
            attach_file(self._client, self._client.get_run(link["run_id"]), path)

    def _guarded(self, folder: Path | None, action: Callable[[], None]) -> bool:
        """Whether it could be done; a failure is answered and stops no other run."""
        try:
            action()
        except (MlflowException, InputError, OSError) as error:
            if folder and not self._ended:
                self._again.append(folder)
            else:
                self._answer(folder, problem=first_line(error))
            return False
        return True

    def _answer(self, folder: Path | None, **facts: Any) -> None:
        answer = {"folder": folder and str(folder), **facts}
        try:
            print(json.dumps(answer), file=self._output, flush=True)
        except BrokenPipeError:
            pass  # the training process was killed; its runs are closed all the same


def main() -> int:
    """Entry of the process; the first line names the store and the experiment."""
    output, sys.stdout = sys.stdout, sys.stderr  # nothing else among the answers
    first = json.loads(sys.stdin.readline())
    try:
        shipper = Shipper(first["uri"], first["experiment"], output)
    except (MlflowException, InputError) as error:
        answer = {"folder": None, "problem": first_line(error)}
        print(json.dumps(answer), file=output, flush=True)
        return 1
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read_input, args=(lines,), daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            shipper.advance()
            continue
        if line is None:
            shipper.end()
            return 0
        shipper.take(json.loads(line))


def _read_input(lines: queue.Queue[str | None]) -> None:
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)


if __name__ == "__main__":
    sys.exit(main())
