"""Ships one run folder to MLflow, live or after the fact."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.blocks import Columns as BlockColumns
from analysis.blocks import columns_of_block
from analysis.history import JOURNAL, RunHistory, load, read_manifest
from analysis.journal import JournalReader
from analysis.rule import RuleParameters
from analysis.summary import RunSummary, summarise
from minigpt.records import TIME_WALL, InputError
from runners.closing import close_killed
from runners.curves import CurveSelector, Point
from runners.folders import current_status
from runners.mlflow_run import MlflowRun

DYING_SECONDS = 2.0  # between the end of a killed process's pipe and its own


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
    """Follows the journal of a run, and closes its MLflow run once it has ended.

    Attributes:
        folder: the run folder.
        run: the MLflow run.
        points: steps shipped so far, those of the summary not counted.
        done: whether the run is complete in MLflow.
    """

    def __init__(self, folder: Path, run: MlflowRun, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.run = run
        self.points = 0
        self.done = False
        self._rule = RuleParameters.from_json(manifest["shipping_rule"])
        self._selector = CurveSelector(self._rule)
        self._reader: JournalReader | None = None

    def advance(self, ended: bool) -> None:
        """Ship what is new; close the MLflow run if the folder's run has ended.

        Args:
            ended: whether the training process is known to be over. A folder that
                still says "running" then is one of a killed process, or of one that
                found no room for the last manifest.

        Raises:
            InputError: the folder cannot be read; the MLflow run has failed.
        """
        manifest = read_manifest(self.folder)
        if not ended and manifest["status"] == "running":
            self._follow_journal()
            return
        try:
            self._finish(manifest)
        except InputError as error:
            self.run.abandon(str(error))
            raise
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

    def _finish(self, manifest: dict[str, Any]) -> None:
        status = manifest["status"]
        if status == "running":
            status = "killed"
            if _dies(manifest):
                with suppress(OSError):  # no room: its journal is the record then
                    manifest = close_killed(self.folder, manifest)
        points: list[Point] = []
        figures: list[Point] = []
        summary = RunSummary()
        if (manifest["record"] or {}).get("rows") != 0:
            history = load(self.folder)
            points = self._selector.feed(history)
            summary = summarise(history, self._rule)
            figures = summary_points(summary, history)
        points += self._selector.finish()
        self.run.log([*points, *figures])  # in one request, which costs 20 ms
        self.points += len(points)
        self.run.close(manifest, status, summary)

    def _ship(self, points: list[Point]) -> None:
        self.run.log(points)
        self.points += len(points)


def summary_points(summary: RunSummary, history: RunHistory) -> list[Point]:
    """The summary as points at the steps where its figures were met.

    The times are those of the record: shipped again they are the same points, which
    MLflow drops.
    """
    if not summary.figures:
        return []
    walls, first = history.scalar(TIME_WALL), int(history.steps[0])
    return [
        Point(figure.step, int(walls[figure.step - first] * 1000), {key: figure.value})
        for key, figure in summary.figures.items()
    ]


def _dies(manifest: dict[str, Any]) -> bool:
    """Whether the process that wrote the run is dead, or is so in a moment."""
    until = time.monotonic() + DYING_SECONDS
    while current_status(manifest) == "running":
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
