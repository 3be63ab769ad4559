"""The shipper: a process that reads run folders and writes MLflow.

It follows the journals while the runs train, so that a training process never waits
for a tracker and need not import one. It takes one JSON object a line on standard
input and answers with one line once a run is complete in MLflow. It ends after the
last run once its input has ended, which also happens when the training process is
killed. The messages, after a first {"uri": ..., "experiment": ...}:

    {"folder": ...}                  follow this run folder
    {"sweep": id, "name": ...}       a sweep begins: its runs get a parent
    {"sweep": id, "status": ...}     it ends
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from mlflow.exceptions import MlflowException

from analysis.blocks import Columns as BlockColumns
from analysis.blocks import columns_of_block
from analysis.history import JOURNAL, load, read_manifest
from analysis.journal import JournalReader
from analysis.rule import RuleParameters
from minigpt.records import InputError
from runners.curves import CurveSelector
from runners.folders import current_status
from runners.mlflow_run import MlflowRun
from runners.settings import redacted
from runners.store import ensure_experiment, open_store

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class _Rows:
    """Columns of journal blocks, in the shape that ``CurveSelector`` reads."""

    columns: BlockColumns

    @property
    def steps(self) -> np.ndarray:
        return self.columns.steps

    def scalar(self, name: str) -> np.ndarray:
        return self.columns.flat[name]

    def measured(self, name: str) -> np.ndarray:
        return self.columns.measured[name]


class RunFollower:
    """Ships one run folder, live or after the fact.

    Attributes:
        run: the MLflow run.
        points: steps shipped so far.
        done: whether the run is complete in MLflow.
    """

    def __init__(self, folder: Path, run: MlflowRun, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.run = run
        self.points = 0
        self.done = False
        self._selector = CurveSelector(
            RuleParameters.from_json(manifest["shipping_rule"])
        )
        self._reader: JournalReader | None = None

    def advance(self) -> None:
        """Ship what is new; close the MLflow run if the folder's run has ended."""
        manifest = read_manifest(self.folder)
        status = current_status(manifest)
        if status == "running":
            self._follow_journal()
            return
        if (manifest.get("record") or {}).get("rows") != 0:
            self._ship(self._selector.feed(load(self.folder)))
        self._ship(self._selector.finish())
        self.run.close(manifest, status)
        self.done = True

    def _follow_journal(self) -> None:
        path = self.folder / JOURNAL
        if self._reader is None:
            if not path.is_file():
                return
            self._reader = JournalReader(path)
        for block in self._reader.blocks():
            rows = _Rows(columns_of_block(self._reader.layout, block))
            self._ship(self._selector.feed(rows))

    def _ship(self, points: list[Any]) -> None:
        self.run.log(points)
        self.points += len(points)


class Shipper:
    """All the runs of one training process.

    Args:
        uri: the store.
        experiment: the MLflow experiment new runs go to.
        output: where the answers go.
    """

    def __init__(self, uri: str, experiment: str, output: TextIO) -> None:
        self._uri, self._output = redacted(uri), output
        self._client = open_store(uri)
        self._experiment_id = ensure_experiment(self._client, uri, experiment)
        self._open: list[RunFollower] = []
        self._parents: dict[str, str] = {}

    def take(self, message: dict[str, Any]) -> None:
        """Follow a run folder, or begin or end a sweep, as the message says."""
        if "folder" in message:
            self._guarded(Path(message["folder"]), self._follow)
        elif "status" in message:
            run_id = self._parents[message["sweep"]]
            self._client.set_terminated(run_id, message["status"])
        else:
            run = self._client.create_run(
                self._experiment_id,
                run_name=message["name"],
                tags={"sweep": message["sweep"], "sweep_parent": "true"},
            )
            self._parents[message["sweep"]] = run.info.run_id

    def _follow(self, folder: Path) -> None:
        manifest = read_manifest(folder)
        run = MlflowRun(
            self._client,
            self._uri,
            self._experiment_id,
            folder,
            manifest,
            self._parents.get(manifest["sweep"]),
        )
        self._open.append(RunFollower(folder, run, manifest))

    def advance(self) -> None:
        """One round over all open runs."""
        for follower in list(self._open):
            if not self._guarded(follower.folder, lambda _, f=follower: f.advance()):
                self._open.remove(follower)
            elif follower.done:
                self._open.remove(follower)
                self._answer(
                    follower.folder,
                    run_id=follower.run.run_id,
                    points=follower.points,
                )

    def _guarded(self, folder: Path, action: Callable[[Path], None]) -> bool:
        """Do something for one run; its failure is answered and stops no other."""
        try:
            action(folder)
        except (MlflowException, InputError, OSError) as error:
            self._answer(folder, problem=str(error).strip().splitlines()[0])
            return False
        return True

    def _answer(self, folder: Path, **facts: Any) -> None:
        answer = {"folder": str(folder), **facts}
        print(json.dumps(answer), file=self._output, flush=True)

    @property
    def idle(self) -> bool:
        """Whether every run taken so far is complete or given up."""
        return not self._open


def main() -> int:
    """Entry of the process; the first line names the store and the experiment."""
    first = json.loads(sys.stdin.readline())
    try:
        shipper = Shipper(first["uri"], first["experiment"], sys.stdout)
    except (MlflowException, InputError) as error:
        problem = str(error).strip().splitlines()[0]
        print(json.dumps({"folder": None, "problem": problem}), flush=True)
        return 1
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read_input, args=(lines,), daemon=True).start()
    more = True
    while more or not shipper.idle:
        try:
            line = lines.get(timeout=POLL_SECONDS if more else POLL_SECONDS / 5)
            more = line is not None
            if line:
                shipper.take(json.loads(line))
        except queue.Empty:
            shipper.advance()
    return 0


def _read_input(lines: queue.Queue[str | None]) -> None:
    for line in sys.stdin:
        lines.put(line)
    lines.put(None)


if __name__ == "__main__":
    sys.exit(main())
