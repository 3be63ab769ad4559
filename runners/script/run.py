"""A run that a script logs: ``run.log({"loss": loss})`` and what goes with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from analysis.logged import COUNTS, EDGES, HISTOGRAM
from minigpt.records import InputError
from runners.folders import write_manifest
from runners.reopen import OpenRecord
from runners.script.alerts import append_alert, make_alert
from runners.script.config import RunConfig
from runners.script.console import tell
from runners.script.ending import Ending, status_of
from runners.script.files import RunFiles
from runners.script.histograms import histogram_of
from runners.script.record import LoggedRecord
from runners.script.summary import RunSummary
from runners.script.values import brief, check_key, check_step, check_value
from runners.tracker import Tracker

if TYPE_CHECKING:  # a script without PyTorch can log as well
    import torch


class Run:
    """One run; made by ``loss_autopsy.init``.

    Every method raises InputError if a value is not what it should be, after
    ``finish``, and in another process than the one that made the run. Nothing of a
    refused call is recorded.

    Attributes:
        folder: the run folder; None with ``mode="disabled"``.
        name: of the run.
        config: a mapping; changes of it are kept.
        summary: a mapping; one value a key, by the rules of ``define_metric``.

    Args:
        name: of the run.
        folder: the run folder, or None.
        manifest: as it was opened.
        tracker: told of the files of the run at its end.
        reopened: the record that is gone on with, if any.

    Raises:
        OSError: the journal that is gone on with cannot be written.
    """

    def __init__(
        self,
        name: str,
        folder: Path | None,
        manifest: dict[str, Any],
        tracker: Tracker,
        reopened: OpenRecord | None = None,
    ) -> None:
        self.name, self.folder = name, folder
        self._manifest = manifest
        self._lock, self._pid = threading.RLock(), os.getpid()
        self.summary = RunSummary(manifest, self._save)
        self._record = record = LoggedRecord(folder, self.summary, reopened)
        self.config = RunConfig(manifest, self._save, lambda: record.present)
        self._files = RunFiles(folder)
        self._ending = Ending(folder, manifest, record, tracker)

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Record numbers.

        Args:
            values: key -> a real number, or an array or tensor with one element; NaN
                and infinities are recorded as they are.
            step: values of one step merge until a higher one comes. Without it each
                call is a step, one after the last; after ``watch`` it is the step of
                the present update.

        Raises:
            InputError: a key, a value or the step is refused.
            OSError: nothing could be written for very long.
        """
        if not isinstance(values, Mapping):
            raise InputError(f"log: expected keys and values, got {brief(values)}")
        with self._usable():
            taken = self._record.taken
            found = {check_key(k, taken): check_value(k, v) for k, v in values.items()}
            self._record.take(found, {}, _step(step), begins=True)

    def log_histogram(
        self, key: str, values: Any, step: int | None = None, bins: int = 32
    ) -> None:
        """Record how many of many values lie where.

        Args:
            key: what they are.
            values: an array or tensor, or a sequence of numbers; NaN and infinities
                are left out of the bins and counted as ``<key>/nonfinite``.
            step: as for ``log``; without it that of the last call of ``log``.
            bins: how many, 1 to 512, between the smallest and the largest value.

        Raises:
            InputError: the key, the values, the bins or the step are refused.
        """
        with self._usable():
            check_key(key)
            count = check_key(f"{key}/nonfinite", self._record.taken)
            counts, edges, odd = histogram_of(key, values, bins)
            arrays = {HISTOGRAM + key + COUNTS: counts, HISTOGRAM + key + EDGES: edges}
            scalars = {count: float(odd)} if odd else {}
            self._record.take(scalars, arrays, _step(step), begins=False)

    def define_metric(self, key: str, summary: str) -> None:
        """Say what the summary takes of a key.

        Args:
            key: of a value that is or will be logged.
            summary: "last", "min", "max", or "at:500" for the value of step 500.

        Raises:
            InputError: it is no such rule.
        """
        with self._usable():
            self.summary.define(key, summary)

    def watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Record gradients, updates and activations of every update from here on.

        A step is then one update of the optimizer, and there is a row for each.

        Raises:
            InputError: a step has begun already, or the model has nothing to train.
        """
        with self._usable():
            facts = self._record.watch(model, optimizer, self._locked)
            self._manifest["facts"] = facts
            self._save()

    def log_table(self, key: str, rows: Any) -> Path | None:
        """Keep a table: rows as dicts, a dict of columns, or a DataFrame.

        Returns:
            Its file in the run folder.
        """
        with self._usable():
            return self._files.table(check_key(key), rows)

    def log_figure(self, key: str, figure: Any) -> Path | None:
        """Keep a figure of matplotlib or plotly, or an image of PIL; returns its file.

        Raises:
            InputError: it is none of these.
        """
        with self._usable():
            return self._files.figure(check_key(key), figure)

    def log_artifact(self, path: str | Path) -> Path | None:
        """Keep a copy of a file or folder; returns where.

        Raises:
            InputError: there is none at that path.
        """
        with self._usable():
            return self._files.file(path)

    def alert(self, title: str, text: str = "", level: str = "info") -> None:
        """Say something that somebody should see, here and on the run's page.

        Args:
            title: in a few words.
            text: more about it.
            level: "info", "warn" or "error".

        Raises:
            InputError: no title, or another level.
        """
        with self._usable():
            alert = make_alert(title, text, level, self._record.present)
            if self.folder:
                append_alert(self.folder, alert)
            tell(f"{level}: {title}{': ' if text else ''}{text}")

    def finish(self, exit_code: int = 0) -> None:
        """Close the run; a second call does nothing.

        Args:
            exit_code: 0 is a finished run, any other a failed one.

        Raises:
            OSError: the folder cannot be written; its journal is the record then.
        """
        if self._ending.done:
            return
        if isinstance(exit_code, bool) or not isinstance(exit_code, int):
            raise InputError(f"exit_code: expected an integer, got {brief(exit_code)}")
        with self._usable():
            status = ("failed", f"exit code {exit_code}")
            self._ending.close(*status if exit_code else ("finished", None))
        if failure := self._ending.failure:
            raise failure

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        elif not self._ending.done:
            with self._usable():
                self._ending.close(*status_of(error))

    def __repr__(self) -> str:
        return f"Run({self.name!r}, folder={str(self.folder)!r})"

    def _locked(self, action: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with self._lock:
                action()

        return run

    def _usable(self) -> threading.RLock:
        """The lock; or why the run cannot be used."""
        if os.getpid() != self._pid:
            raise InputError(
                f"run {self.name}: expected to be used in process {self._pid}, which "
                f"began it, got a call in process {os.getpid()}; each process begins "
                "its own"
            )
        if self._ending.done:
            raise InputError(
                f"run {self.name}: expected no call after finish(), got one; "
                f"init(resume={self.name!r}) goes on with it"
            )
        return self._lock

    def _save(self) -> None:
        self._usable()
        if self.folder:
            write_manifest(self.folder, self._manifest)


def _step(step: Any) -> int | None:
    return None if step is None else check_step(step)
