"""The rows of a script whose model is watched: a step is one update of the optimizer.

A value belongs to the cycle that began with the last training pass after an update.
So a loop that logs before ``optimizer.step()`` and one that logs after it make the
same rows. The script's own step numbers are kept: what is between its first logged
step and the cycle of that step is the distance for all rows.
"""

from __future__ import annotations

import time

from minigpt import records as col
from minigpt.records import InputError
from runners.script.rows import Commit, Row, Update

SCALARS = (
    col.LR,
    col.GRAD_NORM_PRECLIP,
    col.GRAD_NORM_POSTCLIP,
    col.CLIP_COEF,
    col.UPDATE_NORM,
    col.PARAM_NORM,
    col.RELATIVE_UPDATE,
    col.STEP_COUNTER,
    col.NONFINITE_GRADS,
)
# Rows before the first value wait for it, as it says which step they are.
MAX_HELD, MAX_HELD_BYTES = 10_000, 64 << 20


class WatchedRows:
    """Rows that the optimizer makes and a script adds values to.

    Args:
        commit: is given each row once the next cycle has begun.
        following: the step of the first row if the script gives no steps.
    """

    def __init__(self, commit: Commit, following: int) -> None:
        self._commit, self._following = commit, following
        self._numbered = False
        self._held: list[Row] = []
        self._row = Row(None)
        self._ahead: Row | None = None  # of values for a step that has not begun
        self._open = False  # whether a cycle has begun for the row

    @property
    def present(self) -> int | None:
        """See ``runners.script.rows.Filling``."""
        return self._ahead.step if self._ahead else self._row.step

    @property
    def pending(self) -> list[Row]:
        """See ``runners.script.rows.Filling``."""
        return [*self._held, self._row, *([self._ahead] if self._ahead else [])]

    def begin(self) -> None:
        """A training pass has begun: the first one after an update begins a cycle."""
        if self._open and self._row.update is None:
            return
        if self._row.update is not None:
            self._end_row()
        # What was logged before belongs to the step it named, not to this cycle.
        self._row.logged, self._open = False, True

    def updated(self, update: Update) -> None:
        """The optimizer has made its update."""
        self._row.update, self._row.wall = update, time.time()

    def at(self, step: int | None, begins: bool) -> Row:
        """See ``rows.Filling``; no step means that of the present cycle."""
        if step is None:
            self._number(self._following)
            return self._row
        if not self._numbered:
            self._check(step, len(self._held), "that many updates were made before it")
            self._number(step - len(self._held))
        row, ahead = self._row, self._ahead
        self._check(step, self.present, "there is a row for each update up to that one")
        if step == row.step:
            return row
        if ahead and step == ahead.step:
            return ahead
        return self._higher(row, step)

    def _higher(self, row: Row, step: int) -> Row:
        """The row of a step above all that have begun."""
        if not row.logged:
            if row.values or row.arrays:  # of a lower step, to which no update came
                self._commit(Row(row.step, row.values, row.arrays, row.wall))
                self._row = Row(step, update=row.update, wall=row.wall)
            row = self._row
            row.step = step
            return row
        if row.update is None:  # the script counts faster than the optimizer
            self._commit(row)
            self._row = Row(step)
            return self._row
        if self._ahead is None:
            self._ahead = Row(step)
            return self._ahead
        self._end_row()
        self._commit(self._row)
        self._row, self._open = Row(step), False
        return self._row

    def _check(self, step: int, least: int | None, why: str) -> None:
        if least is not None and step < least:
            raise InputError(
                f"step: expected {least} or more, got {step}; with watch() a step is "
                f"one update of the optimizer, and {why}"
            )

    def _end_row(self) -> None:
        row, self._row = self._row, Row(None)
        if self._numbered:
            assert row.step is not None
            self._commit(row)
            self._row, self._ahead = self._ahead or Row(row.step + 1), None
            return
        self._held.append(row)
        assert row.update is not None
        size = len(self._held) * row.update.tensors.nbytes
        if len(self._held) >= MAX_HELD or size > MAX_HELD_BYTES:
            self._number(self._following)

    def _number(self, first: int) -> None:
        """Give the rows so far their steps, if they have none yet."""
        if self._numbered:
            return
        self._numbered = True
        for step, row in enumerate(self._held, first):
            row.step = step
            self._commit(row)
        self._row.step = first + len(self._held)
        self._held = []

    def finish(self) -> None:
        """See ``runners.script.rows.Filling``."""
        row = self._row
        if row.update or row.logged or row.values or row.arrays or self._held:
            self._number(self._following)
        if row.update or row.logged or row.values or row.arrays:
            self._commit(row)
        if self._ahead:
            self._commit(self._ahead)
        self._row, self._ahead = Row(None), None
