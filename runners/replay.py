"""Steps that are trained again after a resume, compared with what was recorded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.blocks import Block
from analysis.journal import JournalReader
from minigpt.records import TIME_WALL, RecordLayout, StepRecord


@dataclass
class Difference:
    """Where a replay left its record.

    Attributes:
        first_step: the first step that differs.
        column: the first column that differs there.
        count: steps that differ.
    """

    first_step: int
    column: str
    count: int = 0


class Replay:
    """What a journal holds from a step on, to hold a second training against.

    Args:
        journal: a reopened journal.
        first_step: the first step that is trained again.

    Attributes:
        steps: how many recorded steps there are from it on.
        difference: None as long as every bit but the time of the step is the same.
    """

    def __init__(self, journal: Path, first_step: int) -> None:
        reader = JournalReader(journal)
        self._layout = reader.layout
        self._rows: dict[int, tuple[Block, int]] = {}
        for block in reader.blocks():
            for row in np.flatnonzero(block.steps >= first_step).tolist():
                self._rows[int(block.steps[row])] = block, row
        self.steps = len(self._rows)
        self.difference: Difference | None = None

    @property
    def left(self) -> int:
        """Steps that have not been trained again."""
        return len(self._rows)

    def take(self, record: StepRecord) -> bool:
        """Whether this step is recorded already; it is compared then."""
        if record.step not in self._rows:
            return False
        block, row = self._rows.pop(record.step)
        column = differing_column(self._layout, block, row, record)
        if column is not None:
            if self.difference is None:
                self.difference = Difference(record.step, column)
            self.difference.count += 1
        return True

    def report(self, resume: dict[str, Any]) -> None:
        """Enter into what a manifest says of a resume whether its replay differs."""
        if self.difference:
            resume["differs"] = asdict(self.difference)


def differing_column(
    layout: RecordLayout, block: Block, row: int, record: StepRecord
) -> str | None:
    """The first column in which a record differs by a bit; the time is left out."""
    for part in ("scalars", "tensors", "integers"):
        kept = getattr(block, part)[row]
        again = np.asarray(getattr(record, part), kept.dtype)
        for place in np.flatnonzero(_bits(kept) != _bits(again)).tolist():
            name = getattr(layout, part)[place]
            if name != TIME_WALL:
                return name
    for name, (lengths, values) in block.arrays.items():
        start = int(lengths[:row].sum())
        kept = values[start : start + int(lengths[row])]
        again = record.arrays.get(name, np.empty(0, kept.dtype))
        if kept.tobytes() != np.asarray(again, kept.dtype).tobytes():
            return name
    return _differing_occasional(block, row, record.occasional)


def _bits(values: np.ndarray) -> np.ndarray:
    """The bits of numbers, so that a NaN equals itself and -0.0 is not 0.0."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _differing_occasional(
    block: Block, row: int, again: dict[str, float]
) -> str | None:
    kept = {name: value for at, name, value in block.occasional if at == row}
    for name in sorted(kept.keys() | again.keys()):
        both = name in kept and name in again
        pair = [kept[name], again[name]] if both else [0.0, 1.0]
        if np.float64(pair[0]).tobytes() != np.float64(pair[1]).tobytes():
            return name
    return None
