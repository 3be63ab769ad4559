"""Ships one run folder to MLflow, live or after the fact."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from analysis.history import JOURNAL, RunHistory, load
from analysis.journal import JournalReader, NotBegun
from analysis.rule import RuleParameters
from analysis.summary import RunSummary, summarise
from minigpt.records import TIME_WALL, InputError
from runners.closing import close_killed
from runners.curves import Point, journal_rows, selector_for
from runners.custody import Custody
from runners.folders import current_status
from runners.manifest_check import read_whole_manifest
from runners.mlflow_run import MlflowRun
from runners.owner import settled

OTHERS_SECONDS = 60.0  # for whom one waits that ships the same folder

MakeRun = Callable[[Path, dict[str, Any]], MlflowRun]


class RunFollower:
    """Follows the journal of a run, and closes its MLflow run once it has ended.

    A store that fails loses nothing: what was read and not yet shipped is kept, and
    no more is read until it is shipped.

    Args:
        folder: the run folder.
        make_run: gives the MLflow run of a folder and its manifest.

    Raises:
        InputError: no run folder.

    Attributes:
        folder: the run folder.
        run: the MLflow run, once the store had it.
        points: steps chosen so far, those of the summary not counted.
        done: whether the run is complete in MLflow.
    """

    def __init__(self, folder: Path, make_run: MakeRun) -> None:
        self.folder, self._make_run = folder, make_run
        self.run: MlflowRun | None = None
        self.points = 0
        self.done = False
        self._first = read_whole_manifest(folder)
        self._rule = RuleParameters.from_json(self._first["shipping_rule"])
        self._selector = selector_for(self._first)
        self._reader: JournalReader | None = None
        self._pending: list[Point] = []
        self._custody, self._mine = Custody(folder), False
        self._ending: tuple[dict[str, Any], str, RunSummary] | None = None

    def advance(self, ended: bool) -> None:
        """Ship what is new; close the MLflow run if the folder's run has ended.

        Args:
            ended: whether the training process is known to be over. A folder that
                still says "running" then is one of a killed process, or of one that
                found no room for the last manifest.

        Raises:
            InputError: the folder cannot be read, and the MLflow run has failed; or
                another process ships the folder, or trains its run on.
            MlflowException, OSError: the store failed; the next call goes on.
        """
        if not self._take(ended):
            return
        manifest = read_whole_manifest(self.folder)
        if manifest.get("owner") != self._first.get("owner"):
            raise InputError("another process trains it on")
        if ended and self._status(manifest) == "running" and not _is_parent(manifest):
            raise InputError("its process is alive")  # it was resumed a moment ago
        if self.run is None:
            self.run = self._make_run(self.folder, manifest)
        self._ship()
        if not ended and manifest["status"] == "running":
            self._follow_journal()
            return
        try:
            self._select_rest(manifest)
        except InputError as error:
            self.run.abandon(str(error))
            raise
        self._ship()
        assert self._ending
        self.run.close(*self._ending)
        self.done = True

    def give_up(self) -> None:
        """Let others have the folder."""
        self._custody.give_up()
        self._mine = False

    def _take(self, ended: bool) -> bool:
        """Whether the folder is this follower's; at the end others are waited for."""
        self._mine = self._mine or self._custody.take(OTHERS_SECONDS if ended else 0.0)
        if ended and not self._mine:
            raise InputError("another process ships it")
        return self._mine

    def _follow_journal(self) -> None:
        path = self.folder / JOURNAL
        if self._reader is None:
            if not path.is_file():
                return
            try:
                self._reader = JournalReader(path)
            except NotBegun:
                return
        for block in self._reader.blocks():
            rows = journal_rows(self._reader.layout, block)
            self._select(self._selector.feed(rows))
            self._ship()

    def _select_rest(self, manifest: dict[str, Any]) -> None:
        """Choose the last points, once; closes the folder of a dead process first."""
        if self._ending:
            return
        status = self._status(manifest)
        if manifest["status"] == "running":
            if status == "killed":
                with suppress(OSError):  # no room: its journal is the record then
                    manifest = close_killed(self.folder, manifest)
            status = "killed"  # or it lives and found no room to say that it is over
        finished, summary = status == "finished", RunSummary()
        if has_steps(self.folder, manifest):
            history = load(self.folder)
            summary = summarise(history, self._rule)
            self._select(self._selector.feed(history))
            self._select(self._selector.finish(finished))
            if finished:  # one that may be resumed has no last figures yet
                self._pending += summary_points(summary, history)
        self._ending = manifest, status, summary

    def _status(self, manifest: dict[str, Any]) -> str:
        return settled(lambda: current_status(self.folder, manifest))

    def _select(self, points: list[Point]) -> None:
        self._pending += points
        self.points += len(points)

    def _ship(self) -> None:
        if self._pending:
            assert self.run
            self.run.log(self._pending)  # in one request, which costs 20 ms
            self._pending = []


def _is_parent(manifest: dict[str, Any]) -> bool:
    """Whether the run's process is the one that started this shipper.

    It has ended the shipper's input, and so its runs, whatever their folders say.
    """
    who = manifest.get("owner")
    return isinstance(who, dict) and who.get("pid") == os.getppid()


def has_steps(folder: Path, manifest: dict[str, Any]) -> bool:
    """Whether anything was recorded; a run may die before its first step."""
    record = manifest.get("record")
    if record:
        return record.get("rows") != 0
    return (folder / JOURNAL).is_file()


def summary_points(summary: RunSummary, history: RunHistory) -> list[Point]:
    """The summary as points at the steps where its figures were met.

    The times are those of the record: shipped again they are the same points, which
    MLflow drops.
    """
    if not summary.figures:
        return []
    walls = dict(zip(history.steps.tolist(), history.scalar(TIME_WALL), strict=True))
    return [
        Point(figure.step, int(walls[figure.step] * 1000), {key: figure.value})
        for key, figure in summary.figures.items()
    ]
