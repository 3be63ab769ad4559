"""The journal of a closed record, made again so that a run can go on from it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analysis.blocks import Columns
from analysis.journal import encode_block, encode_header
from minigpt.records import RecordLayout, StepRecord

ROWS_PER_BLOCK = 1024


def encode_journal(columns: Columns) -> bytes:
    """The bytes of a journal that reads as the same record, bit for bit.

    Args:
        columns: the record, as ``read_parquet`` gives it.
    """
    layout, count = columns.layout, len(columns.steps)
    parts = [encode_header(layout)]
    for start in range(0, count, ROWS_PER_BLOCK):
        rows = range(start, min(start + ROWS_PER_BLOCK, count))
        parts.append(encode_block(layout, list(_records(columns, rows))))
    return b"".join(parts)


def _records(columns: Columns, rows: range) -> Iterator[StepRecord]:
    layout, part = columns.layout, slice(rows.start, rows.stop)
    scalars = _matrix(columns, layout.scalars, part, np.float64)
    tensors = _matrix(columns, layout.tensors, part, np.float32)
    integers = _matrix(columns, layout.integers, part, np.uint64)
    for place, row in enumerate(rows):
        yield StepRecord(
            int(columns.steps[row]),
            scalars[place],
            tensors[place],
            integers[place],
            {
                name: values[offsets[row] : offsets[row + 1]]
                for name, (values, offsets) in columns.arrays.items()
            },
            _measured(columns, layout, row),
        )


def _matrix(
    columns: Columns, names: tuple[str, ...], part: slice, dtype: type
) -> np.ndarray:
    """Shape (rows, names); one without columns still has its rows."""
    matrix = np.empty((part.stop - part.start, len(names)), dtype)
    for place, name in enumerate(names):
        matrix[:, place] = columns.flat[name][part]
    return matrix


def _measured(columns: Columns, layout: RecordLayout, row: int) -> dict[str, float]:
    return {
        name: float(columns.flat[name][row])
        for name in layout.occasional
        if columns.measured[name][row]
    }
