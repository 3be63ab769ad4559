"""The row that a script is filling: values of one step merge until the next step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from minigpt.records import InputError


@dataclass(eq=False)
class Update:
    """What the observer measured of one update.

    Attributes:
        scalars: float64, in the order of ``watched_rows.SCALARS``.
        tensors: float32, in the order of the observer's columns.
        param_hash: of all parameters after it.
    """

    scalars: np.ndarray
    tensors: np.ndarray
    param_hash: int


@dataclass(eq=False)
class Row:
    """One row on its way into the record.

    Attributes:
        step: None as long as it is not known.
        values: what was logged.
        arrays: column -> entries.
        wall: seconds since the epoch when the first value came, or the update.
        update: None at a row without one.
        logged: whether a value came since the cycle of this row's update began.
    """

    step: int | None
    values: dict[str, float] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    wall: float | None = None
    update: Update | None = None
    logged: bool = False

    def take(self, values: dict[str, float], arrays: dict[str, np.ndarray]) -> None:
        """Put values in; those that are there already are replaced."""
        self.values |= values
        self.arrays |= arrays
        self.logged = True
        self.wall = self.wall or time.time()


Commit = Callable[[Row], None]


class Filling(Protocol):
    """Where the values of a step go."""

    def at(self, step: int | None, begins: bool) -> Row:
        """The row of a step, which takes the values.

        Args:
            step: None for the next or the present one.
            begins: whether values without a step begin one, as those of ``log`` do.

        Raises:
            InputError: the step is lower than it may be.
        """

    def finish(self) -> None:
        """Commit what is not committed yet."""

    @property
    def present(self) -> int | None:
        """The step that is being filled; None before the first."""

    @property
    def pending(self) -> list[Row]:
        """The rows that are not committed yet."""


class Rows:
    """Rows of a script without ``watch``: a step is what the script says.

    Args:
        commit: is given each row once a higher step has begun.
        following: the step that a first value without a step gets.
    """

    def __init__(self, commit: Commit, following: int) -> None:
        self._commit, self._following = commit, following
        self._row: Row | None = None

    @property
    def present(self) -> int | None:
        """See ``Filling``."""
        return self._row.step if self._row else None

    @property
    def pending(self) -> list[Row]:
        """See ``Filling``."""
        return [self._row] if self._row else []

    def at(self, step: int | None, begins: bool) -> Row:
        """See ``Filling``."""
        present = self.present
        if step is None and present is None:
            step = self._following
        elif step is None:
            step = present + begins
        if present is not None and step < present:
            raise InputError(
                f"step: expected {present} or more, which is the present one, "
                f"got {step}"
            )
        if self._row is None or step > present:
            self.finish()
            self._row = Row(step)
        return self._row

    def finish(self) -> None:
        """See ``Filling``."""
        if self._row:
            self._commit(self._row)
            self._row = None
