"""The record of a script's run: rows on their way from ``log`` to the journal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.history import JOURNAL
from minigpt import records as col
from minigpt.records import InputError, RecordLayout, StepRecord
from runners.reopen import OpenRecord
from runners.script.console import tell
from runners.script.row_replay import RowReplay
from runners.script.row_writer import RowWriter
from runners.script.rows import Filling, Row, Rows
from runners.script.summary import RunSummary
from runners.script.watched_rows import WatchedRows
from runners.script.watching import Locked, Watching, is_watched

if TYPE_CHECKING:  # a script without PyTorch can log as well
    import torch

MAX_COLUMNS = 5000  # keys of one run; more are steps or names within keys
_UNWATCHED = RecordLayout((col.TIME_WALL,))


class LoggedRecord:
    """Takes values, gathers them into rows and hands these to the journal's thread.

    Args:
        folder: the run folder; None writes nothing.
        summary: sees each recorded row.
        reopened: the record that is gone on with, if any.

    Raises:
        OSError: the journal that is gone on with cannot be written.

    Attributes:
        replay: of a run that is gone on with, what is logged again; else None.
        violations, loss, seconds: nothing; they are figures of our own trainer.
    """

    def __init__(
        self,
        folder: Path | None,
        summary: RunSummary,
        reopened: OpenRecord | None = None,
    ) -> None:
        self._summary = summary
        self.replay: RowReplay | None = None
        self._layout: RecordLayout | None = None  # of the journal, once there is one
        self._following = reopened.next_step if reopened else 0
        self._writer = RowWriter(folder, tell) if folder else None
        if folder and self._writer and reopened and reopened.reader:
            self._layout = reopened.reader.layout
            self.replay = RowReplay(folder / JOURNAL, self._following, tell)
            self._writer.open(self._layout, reopened.rows)
        columns = self._layout or _UNWATCHED
        self._columns = {*columns.occasional, *columns.arrays}  # in the journal
        self._keys = set(self._columns)  # and in rows on their way
        self._rows: Filling = Rows(self._commit, self._following)
        self._watching: Watching | None = None
        self._begun = False
        summary.pending = lambda: self._rows.pending
        self.violations: dict[str, int] = {}
        self.loss = self.seconds = math.nan

    @property
    def rows(self) -> int:
        """Rows in whole blocks of the journal."""
        return self._writer.rows if self._writer else 0

    @property
    def present(self) -> int | None:
        """The step that is being filled; None before the first."""
        return self._rows.present

    @property
    def taken(self) -> frozenset[str]:
        """Columns that the observer records."""
        if self._watching is None:
            return frozenset()
        layout = self._watching.layout
        return frozenset((*layout.scalars, *layout.tensors))

    def take(
        self,
        values: Mapping[str, float],
        arrays: Mapping[str, np.ndarray],
        step: int | None,
        begins: bool,
    ) -> None:
        """Put checked values into the row of a step.

        Args:
            values: key -> number.
            arrays: column -> entries.
            step: None for the next one or the present one.
            begins: whether values without a step begin one.

        Raises:
            InputError: the step is too low, there are too many keys, or a watched
                run is gone on with and not watched.
            OSError: see ``RowWriter.put``.
        """
        if self._layout and is_watched(self._layout) and not self._watching:
            raise InputError(
                "log: expected watch(model, optimizer) before it, as this run has "
                "recorded its updates so far"
            )
        keys = self._keys | values.keys() | arrays.keys()
        if len(keys) > MAX_COLUMNS:
            raise InputError(
                f"log: expected at most {MAX_COLUMNS} keys in a run, got {len(keys)}; "
                "is a step or a name part of the key?"
            )
        row = self._rows.at(step, begins)
        self._begun, self._keys = True, keys
        row.take(dict(values), dict(arrays))

    def watch(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        locked: Locked,
    ) -> dict[str, Any]:
        """Record every update from here on; the facts of model and optimizer.

        Raises:
            InputError: see ``Run.watch``.
        """
        if self._begun or self._watching:
            found = "values were logged" if self._begun else "a model is watched"
            raise InputError(f"watch: expected before the first step, {found} already")
        rows = WatchedRows(self._commit, self._following)
        watching = Watching(model, optimizer, rows, locked)
        if self._layout and not watching.fits(self._layout):
            watching.close()
            raise InputError(
                "watch: expected the model whose columns this run has recorded so far, "
                "got one with others"
            )
        self._watching, self._rows = watching, rows
        return watching.facts

    def _commit(self, row: Row) -> None:
        """Let a row be written, unless it is recorded already."""
        record = self._record(row)
        if self.replay and self.replay.take(record):
            return
        self._summary.see(record.step, record.occasional)
        if self._writer is None:
            return
        if self._layout is None:
            self._open()
        occasional = [key for key in row.values if key not in self._columns]
        arrays = {
            key: str(entries.dtype)
            for key, entries in row.arrays.items()
            if key not in self._columns
        }
        if occasional or arrays:
            self._writer.extend(occasional, arrays)
            self._columns.update(occasional, arrays)
        self._writer.put(record)

    def _open(self) -> None:
        assert self._writer
        self._layout = self._watching.layout if self._watching else _UNWATCHED
        self._writer.open(self._layout)

    def _record(self, row: Row) -> StepRecord:
        assert row.step is not None
        if self._watching:
            scalars, tensors, integers = self._watching.parts(row.update)
        else:
            scalars, tensors = np.empty(0), np.empty(0, np.float32)
            integers = np.empty(0, np.uint64)
        scalars = np.concatenate([[row.wall], scalars])
        return StepRecord(row.step, scalars, tensors, integers, row.arrays, row.values)

    def close(self) -> None:
        """Take the hooks off, commit what is left and close the journal.

        Raises:
            OSError: it cannot be written; what is there is whole.
        """
        if self._watching:
            self._watching.close()
        if self._writer:
            self._writer.stop()
        try:
            self._rows.finish()
            if self._writer and self._layout is None:
                self._open()  # a record without a step is one too
        finally:
            if self._writer:
                self._writer.close()
