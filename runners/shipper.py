"""The shipper: a process that reads run folders and writes MLflow.

It follows the journals while the runs train, so that a training process never waits
for a tracker and need not import one. It takes one JSON object a line on standard
input and answers with one line once a run is complete in MLflow. It ends after the
last run once its input has ended, which also happens when the training process is
killed; a run that has not ended by then was killed. The messages, after a first
{"uri": ..., "experiment": ..., "root": ...}:

    {"folder": ...}    follow this run folder
    {"sweep": ...}     the runs of this sweep's folder get a parent
    {"attach": ...}    upload this file of a run folder at the end

The store may be away when the shipper starts, or go away at any time. It is asked
again until the input ends, and one last time then; what is not shipped by that time
is answered as a problem, and ``autopsy sync`` ships it.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from analysis.history import MANIFEST
from minigpt.records import InputError
from runners.attachment import attach_file
from runners.connection import STORE_ERRORS, Connection
from runners.folders import SWEEPS, read_link
from runners.follower import RunFollower
from runners.mlflow_run import MlflowRun
from runners.mlflow_sweep import SweepRun
from runners.store import first_line, give_up_early

POLL_SECONDS = 0.5
LAST_ATTEMPTS = 2  # for what a store that answers refuses at the end

Answer = Callable[[dict[str, Any]], None]


class Shipper:
    """Ships run folders to one experiment of a store.

    Args:
        connection: to the store.
        answer: is given a JSON object for each run that is complete in MLflow, or
            cannot be.
    """

    def __init__(self, connection: Connection, answer: Answer) -> None:
        self._store, self._answer = connection, answer
        self._open: list[RunFollower] = []
        self._files: list[Path] = []
        self._sweeps: dict[Path, SweepRun | None] = {}
        self._ended = False

    def take(self, message: dict[str, Any]) -> None:
        """Follow a run folder, begin a sweep or keep a file, as the message says."""
        if "attach" in message:
            self._files.append(Path(message["attach"]))
        elif "sweep" in message:
            self._sweeps.setdefault(Path(message["sweep"]), None)
        else:
            self._follow(Path(message["folder"]))

    def _follow(self, folder: Path) -> None:
        try:
            self._open.append(RunFollower(folder, self._make_run))
        except InputError as error:
            self._problem(folder, error)

    def _make_run(self, folder: Path, manifest: dict[str, Any]) -> MlflowRun:
        sweep = None
        if manifest.get("sweep"):
            sweep = self._sweep(folder.parent / SWEEPS / manifest["sweep"])
        try:
            run = MlflowRun(
                self._store.client,
                self._store.uri,
                self._store.experiment_id,
                folder,
                manifest,
                sweep and sweep.run_id,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{folder / MANIFEST}: expected the manifest of a run, found one "
                f"without {error!s:.80}"
            ) from error
        if sweep:
            sweep.add(run)
        return run

    def _sweep(self, folder: Path) -> SweepRun | None:
        """The parent of a sweep's runs, made if it is missing; None without a folder.

        A folder of a sweep may have been removed; its runs then have no parent.
        """
        if not folder.is_dir():
            return None
        run = self._sweeps.get(folder)
        if run is None:
            run = SweepRun(self._store.client, self._store.experiment_id, folder)
            self._sweeps[folder] = run
        return run

    def advance(self) -> None:
        """One round over all open runs, unless the store is away."""
        if not self._store.ready():
            return
        for follower in list(self._open):
            try:
                self._advance(follower)
            except STORE_ERRORS:
                if not self._store.ready(at_once=True):
                    return  # all of them wait for it, and lose nothing by it

    def _advance(self, follower: RunFollower) -> None:
        """Let one run go on; what its own folder forbids is answered.

        Raises:
            MlflowException, OSError: the store, or the disk, may do it another time.
        """
        try:
            follower.advance(self._ended)
        except InputError as error:
            self._problem(follower.folder, error)
        else:
            if not follower.done:
                return
            self._complete(follower)
        follower.give_up()
        self._open.remove(follower)

    def _complete(self, follower: RunFollower) -> None:
        assert follower.run
        self._answer(
            {
                "folder": str(follower.folder),
                "run_id": follower.run.run_id,
                "points": follower.points,
            }
        )

    def end(self) -> None:
        """The input has ended: no run goes on. Close what is still open."""
        self._ended = True
        reachable = self._store.ready(at_once=True)
        for follower in list(self._open):
            reachable = reachable and self._last(follower)
            if not reachable:
                self._give_up(follower, self._store.problem)
        if not reachable:
            return
        for path in self._files:
            self._guarded(lambda p=path: self._attach(p))
        for folder in list(self._sweeps):
            self._guarded(lambda f=folder: self._close_sweep(f))

    def _last(self, follower: RunFollower) -> bool:
        """The last attempts for one run; whether the store still answers."""
        problem = ""
        for _ in range(LAST_ATTEMPTS):
            try:
                self._advance(follower)
            except STORE_ERRORS as error:
                problem = first_line(error)
                if not self._store.ready(at_once=True):
                    return False
            else:
                return True
        self._give_up(follower, problem)
        return True

    def _give_up(self, follower: RunFollower, problem: str) -> None:
        if follower in self._open:
            self._open.remove(follower)
            self._problem(follower.folder, problem)
        follower.give_up()

    def _attach(self, path: Path) -> None:
        link = read_link(path.parent)
        if link:  # else its run is answered as not complete
            run = self._store.client.get_run(link["run_id"])
            attach_file(self._store.client, run, path)

    def _close_sweep(self, folder: Path) -> None:
        if sweep := self._sweep(folder):
            sweep.close()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except STORE_ERRORS as error:
            self._problem(None, error)

    def _problem(self, folder: Path | None, problem: Exception | str) -> None:
        text = problem if isinstance(problem, str) else first_line(problem)
        self._answer({"folder": folder and str(folder), "problem": text})


def answers_on(output: TextIO) -> Answer:
    """What prints answers as lines, and bears that nobody reads them any more."""

    def answer(facts: dict[str, Any]) -> None:
        try:
            print(json.dumps(facts), file=output, flush=True)
        except BrokenPipeError:
            pass  # the training process was killed; its runs are closed all the same

    return answer


def main() -> int:
    """Entry of the process; the first line names the store and the experiment."""
    output, sys.stdout = sys.stdout, sys.stderr  # nothing else among the answers
    give_up_early()
    first = json.loads(sys.stdin.readline())
    connection = Connection(first["uri"], first["experiment"], Path(first["root"]))
    shipper = Shipper(connection, answers_on(output))
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
