"""Thinning: which steps of a long run a page holds, so that no extreme is lost.

A page holds a bounded number of values. Where a record has more, its rows are put
into cells, and of each cell and line the smallest and the largest value are kept.
Around what a reader will look at, a cell is one row and its values are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

LEAD, LAG = 60, 120  # rows kept exactly before and after a flagged step
WIDTH = LEAD + 1 + LAG
MAX_WINDOWS = 12


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells of consecutive rows that cover all rows once, in order.

    Attributes:
        first: int64, shape (c,), first row of each cell.
        last: int64, shape (c,), last row of each cell, itself included.
    """

    first: np.ndarray
    last: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def exact(self) -> bool:
        """Whether every cell is one row."""
        return bool(np.array_equal(self.first, self.last))

    def reduce(self, values: np.ndarray) -> Reduced:
        """The extremes of each cell.

        Args:
            values: float, shape (rows,).
        """
        finite = np.isfinite(values)
        if self.exact:
            odd = np.flatnonzero(~finite)
            return Reduced(values, values, odd, values[odd])
        known = np.where(finite, values, np.nan)
        low = np.fmin.reduceat(known, self.first)
        high = np.fmax.reduceat(known, self.first)
        rows = np.flatnonzero(~finite)
        cells, firsts = np.unique(self.cell_of(rows), return_index=True)
        falls = values[self.first] > values[self.last]  # then the high comes first
        start, end = np.where(falls, high, low), np.where(falls, low, high)
        return Reduced(start, end, cells, values[rows[firsts]])

    def cell_of(self, rows: np.ndarray) -> np.ndarray:
        """The cell of each row."""
        return np.searchsorted(self.first, rows, side="right") - 1


@dataclass(frozen=True, eq=False)
class Reduced:
    """A line on a grid.

    Attributes:
        start: shape (c,), one extreme of each cell, NaN if none of it is finite.
        end: shape (c,), the other extreme; the order is that in which a line
            through the cell runs.
        odd: int64, cells that hold a value that is not finite.
        odd_values: the first such value of each of these cells.
    """

    start: np.ndarray
    end: np.ndarray
    odd: np.ndarray
    odd_values: np.ndarray


def make_grid(rows: int, cells: int, keep: Iterable[int] = ()) -> Grid:
    """Cells for so many rows: one a row if there is room, else wide ones.

    Args:
        rows: of the record.
        cells: how many there may be, besides those of the windows.
        keep: rows around which cells are single rows, from ``LEAD`` before to ``LAG``
            after; the first of them, as many as ``MAX_WINDOWS`` windows or half of
            ``cells`` have room for, but one window at least.
    """
    if rows <= cells:
        every = np.arange(rows)
        return Grid(every, every)
    bounds = np.linspace(0, rows, max(cells, 1) + 1).astype(np.int64)[:-1]
    single = np.zeros(rows, bool)
    room = max(WIDTH, min(MAX_WINDOWS * WIDTH, cells // 2))
    for row in keep:
        window = slice(max(0, row - LEAD), row + LAG + 1)
        room -= int((~single[window]).sum())
        if room < 0:
            break
        single[window] = True
    single[[0, -1]] = True
    alone = np.flatnonzero(single)
    after = alone[alone < rows - 1] + 1
    first = np.unique(np.concatenate([bounds, alone, after]))
    return Grid(first, np.concatenate([first[1:], [rows]]) - 1)
