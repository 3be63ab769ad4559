"""Steps that a script logs again after it was resumed, compared with the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from analysis.blocks import Block
from analysis.journal import JournalReader
from minigpt.records import TIME_WALL, StepRecord

_Place = tuple[Block, int]


class RowReplay:
    """Takes the rows of steps that a reopened journal holds already.

    They are not recorded twice. Only what is logged again is compared: a value that
    differs by a bit, or that the record does not have at that step, is reported.

    Args:
        journal: as ``runners.reopen`` left it.
        following: the step after the last recorded one.
        tell: is given a line at the first difference.
    """

    def __init__(
        self, journal: Path, following: int, tell: Callable[[str], None]
    ) -> None:
        self._journal, self._following, self._tell = journal, following, tell
        self._rows: dict[int, _Place] | None = None
        self._layout = None
        self._differs: dict[str, Any] = {}

    def take(self, record: StepRecord) -> bool:
        """Whether this step is, or might have been, recorded already."""
        if record.step >= self._following:
            return False
        if self._rows is None:
            self._rows = self._read(record.step)
        place = self._rows.pop(record.step, None)
        key = "step" if place is None else self._difference(place, record)
        if key is not None:
            self._report(record.step, key)
        return True

    def report(self, resume: dict[str, Any]) -> None:
        """Enter into what a manifest says of a resume whether its replay differs."""
        if self._differs:
            resume["differs"] = self._differs

    def _read(self, first: int) -> dict[int, _Place]:
        reader, rows = JournalReader(self._journal), {}
        for block in reader.blocks():
            for row in np.flatnonzero(block.steps >= first).tolist():
                step = int(block.steps[row])
                if step < self._following:  # the rest is what this process wrote
                    rows[step] = block, row
        self._layout = reader.layout
        return rows

    def _report(self, step: int, key: str) -> None:
        if not self._differs:
            self._differs = {"first_step": step, "key": key, "count": 0}
            self._tell(
                f"step {step} is recorded already, and {key} differs now; what was "
                "recorded first stays"
            )
        self._differs["count"] += 1

    def _difference(self, place: _Place, record: StepRecord) -> str | None:
        """The first name under which a record differs from a row; None if none."""
        block, row = place
        kept = {name: value for at, name, value in block.occasional if at == row}
        pairs = [
            *((n, kept.get(n), value) for n, value in record.occasional.items()),
            *self._fixed(block, row, record),
            *((n, _entries(block, n, row), v) for n, v in record.arrays.items()),
        ]
        return next((n for n, one, two in pairs if not _same(one, two)), None)

    def _fixed(
        self, block: Block, row: int, record: StepRecord
    ) -> Iterator[tuple[str, Any, Any]]:
        for part in ("scalars", "tensors", "integers"):
            kept, again = getattr(block, part)[row], getattr(record, part)
            for name, one, two in zip(
                getattr(self._layout, part), kept, again, strict=True
            ):
                if name != TIME_WALL:
                    yield name, one, two


def _entries(block: Block, name: str, row: int) -> np.ndarray | None:
    if name not in block.arrays:
        return None
    lengths, values = block.arrays[name]
    start = int(lengths[:row].sum())
    return values[start : start + int(lengths[row])]


def _same(one: Any, two: Any) -> bool:
    """Whether two values have the same bits; a NaN is the same as any NaN."""
    if one is None:
        return False
    one, two = np.asarray(one), np.asarray(two)
    if one.shape != two.shape:
        return False
    both_nan = (one != one) & (two != two)
    return bool(
        np.all(both_nan | ((one == two) & (np.signbit(one) == np.signbit(two))))
    )
