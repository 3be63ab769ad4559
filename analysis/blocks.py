"""A block of consecutive step records: its columns and its bytes in the journal.

All numbers are little-endian. The payload of a block of n records is::

    u32 length of meta, meta as JSON: {"n": n, "occasional": [[row, name, value], ...]}
    steps i64[n]  scalars f64[n,S]  tensors f32[n,T]  integers u64[n,I]
    then for each array column: lengths u32[n], all entries one after another

Decoding trusts nothing: every part is checked against the layout and against the
bytes that are there before memory is taken for it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigpt.records import RecordLayout, StepRecord

MAX_META_BYTES = 16 << 20  # JSON grows some twentyfold in memory
_U32 = struct.Struct("<I")
_FIXED = (("scalars", "<f8"), ("tensors", "<f4"), ("integers", "<u8"))


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive records, column by column.

    Attributes:
        steps: int64, shape (n,).
        scalars: float64, shape (n, S), columns in the order of the layout.
        tensors: float32, shape (n, T).
        integers: uint64, shape (n, I).
        arrays: column name -> (lengths int64 (n,), entries (sum of lengths,)).
        occasional: (row within this block, column name, value).
    """

    steps: np.ndarray
    scalars: np.ndarray
    tensors: np.ndarray
    integers: np.ndarray
    arrays: dict[str, tuple[np.ndarray, np.ndarray]]
    occasional: list[tuple[int, str, float]]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def nbytes(self) -> int:
        """Memory held by the numbers, in bytes."""
        fixed = (self.steps, self.scalars, self.tensors, self.integers)
        ragged = [part for pair in self.arrays.values() for part in pair]
        return sum(part.nbytes for part in (*fixed, *ragged))


def concatenate(layout: RecordLayout, blocks: Sequence[Block]) -> Block:
    """One block with the records of all ``blocks``; an empty list is legal.

    Args:
        layout: of the last of them; where columns were added on the way, the blocks
            before lack the newer arrays, which are empty at their steps.
        blocks: in the order of their steps.
    """
    blocks = [_empty(layout), *blocks]
    starts = np.cumsum([0, *(len(block) for block in blocks)]).tolist()
    return Block(
        steps=np.concatenate([block.steps for block in blocks]),
        scalars=np.concatenate([block.scalars for block in blocks]),
        tensors=np.concatenate([block.tensors for block in blocks]),
        integers=np.concatenate([block.integers for block in blocks]),
        arrays={
            name: tuple(
                np.concatenate(parts)
                for parts in zip(
                    *(_ragged(block, name, dtype) for block in blocks), strict=True
                )
            )
            for name, dtype in layout.arrays.items()
        },
        occasional=[
            (start + row, name, value)
            for start, block in zip(starts, blocks, strict=False)
            for row, name, value in block.occasional
        ],
    )


def _ragged(block: Block, name: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """An array column of a block: lengths and entries; none before it was added."""
    return block.arrays.get(name, (np.zeros(len(block), np.int64), np.empty(0, dtype)))


def _empty(layout: RecordLayout) -> Block:
    return Block(
        steps=np.empty(0, np.int64),
        scalars=np.empty((0, len(layout.scalars))),
        tensors=np.empty((0, len(layout.tensors)), np.float32),
        integers=np.empty((0, len(layout.integers)), np.uint64),
        arrays={
            name: (np.empty(0, np.int64), np.empty(0, dtype))
            for name, dtype in layout.arrays.items()
        },
        occasional=[],
    )


@dataclass(frozen=True, eq=False)
class Columns:
    """A whole record in memory, by column name.

    Attributes:
        layout: which column is of which kind.
        steps: int64, shape (n,).
        flat: scalar (float64), tensor (float32), integer (uint64) and occasional
            (float64, NaN where not measured) columns, each of shape (n,).
        measured: occasional column -> bool, shape (n,).
        arrays: array column -> (values (m,), offsets int64 (n + 1,)).
    """

    layout: RecordLayout
    steps: np.ndarray
    flat: dict[str, np.ndarray]
    measured: dict[str, np.ndarray]
    arrays: dict[str, tuple[np.ndarray, np.ndarray]]


def columns_of_block(layout: RecordLayout, block: Block) -> Columns:
    """The columns of all records of ``block``, which may lack the newest arrays."""
    flat = {}
    for part in ("scalars", "tensors", "integers"):
        matrix = np.asfortranarray(getattr(block, part))
        flat |= dict(zip(getattr(layout, part), matrix.T, strict=True))
    count = len(block)
    measured = {name: np.zeros(count, bool) for name in layout.occasional}
    flat |= {name: np.full(count, np.nan) for name in layout.occasional}
    for row, name, value in block.occasional:
        measured[name][row], flat[name][row] = True, value
    arrays = {}
    for name, dtype in layout.arrays.items():
        lengths, values = _ragged(block, name, dtype)
        arrays[name] = values, np.concatenate([[0], np.cumsum(lengths)])
    return Columns(layout, block.steps, flat, measured, arrays)


def encode_payload(layout: RecordLayout, records: Sequence[StepRecord]) -> bytes:
    """The payload for these records; an array a record lacks is stored as empty.

    Raises:
        ValueError: a record does not fit the layout (width, dtype or name).
    """
    return b"".join(_parts(layout, records))


def _parts(layout: RecordLayout, records: Sequence[StepRecord]) -> Iterator[bytes]:
    meta = {"n": len(records), "occasional": _occasional(layout, records)}
    text = json.dumps(meta).encode()
    yield _U32.pack(len(text)) + text
    yield np.array([record.step for record in records], "<i8").tobytes()
    for part, dtype in _FIXED:
        width = len(getattr(layout, part))
        rows = [getattr(record, part) for record in records]
        if any(len(row) != width for row in rows):
            raise ValueError(f"{part}: expected {width} values in every record")
        yield _joined(part, rows, dtype).tobytes()
    for name, stored in layout.arrays.items():
        none = np.empty(0, stored)
        rows = [record.arrays.get(name, none) for record in records]
        yield np.array([len(row) for row in rows], "<u4").tobytes()
        yield _joined(name, rows, np.dtype(stored).newbyteorder("<")).tobytes()


def _occasional(
    layout: RecordLayout, records: Sequence[StepRecord]
) -> list[tuple[int, str, float]]:
    arrays, measured = set(layout.arrays), set(layout.occasional)
    found = []
    for row, record in enumerate(records):
        unknown = (record.arrays.keys() - arrays) | (
            record.occasional.keys() - measured
        )
        if unknown:
            raise ValueError(f"step {record.step}: not in the layout: {unknown}")
        for name, value in record.occasional.items():
            found.append((row, name, float(value)))
    return found


def _joined(name: str, rows: list[np.ndarray], dtype: Any) -> np.ndarray:
    """One array of all rows; never a conversion that could lose a digit."""
    try:
        return np.concatenate(rows, dtype=dtype, casting="safe")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected 1-d arrays of {dtype}: {error}") from None


class _Cursor:
    """Hands out consecutive parts of a payload, never more than there is."""

    def __init__(self, payload: bytes) -> None:
        self._payload, self._offset = payload, 0

    def take(self, dtype: str, count: int) -> np.ndarray:
        dtype = np.dtype(dtype).newbyteorder("<")
        end = self._offset + count * dtype.itemsize
        if end > len(self._payload):
            raise ValueError(f"{count} values of {dtype} do not fit")
        part = np.frombuffer(self._payload, dtype, count, self._offset)
        self._offset = end
        return part.astype(dtype.newbyteorder("="))

    def left(self) -> int:
        return len(self._payload) - self._offset


def decode_payload(layout: RecordLayout, payload: bytes) -> Block:
    """The block whose payload this is.

    Raises:
        ValueError: the payload does not hold whole records of this layout.
    """
    cursor = _Cursor(payload)
    length = int(cursor.take("u4", 1)[0])
    if length > MAX_META_BYTES:
        raise ValueError(f"meta of {length} bytes")
    count, occasional = _checked_meta(layout, cursor.take("u1", length).tobytes())
    steps = cursor.take("i8", count)
    fixed = {
        part: cursor.take(dtype, count * width).reshape(count, width)
        for part, dtype in _FIXED
        for width in [len(getattr(layout, part))]
    }
    arrays = {}
    for name, dtype in layout.arrays.items():
        lengths = cursor.take("u4", count).astype(np.int64)
        arrays[name] = lengths, cursor.take(dtype, int(lengths.sum()))
    if cursor.left():
        raise ValueError(f"{cursor.left()} bytes too many")
    return Block(steps=steps, **fixed, arrays=arrays, occasional=occasional)


def _checked_meta(
    layout: RecordLayout, text: bytes
) -> tuple[int, list[tuple[int, str, float]]]:
    try:
        meta = json.loads(text)
        count, occasional = meta["n"], meta["occasional"]
        if type(count) is not int or count < 1 or type(occasional) is not list:
            raise ValueError(f"meta of {count!r:.40} records")
        known = set(layout.occasional)
        for row, name, value in occasional:
            at_a_row = type(row) is int and 0 <= row < count
            if not (at_a_row and name in known and type(value) is float):
                raise ValueError(f"meta entry {[row, name, value]!r:.80}")
        cells = [(row, name, value) for row, name, value in occasional]
        if len({cell[:2] for cell in cells}) < len(cells):
            raise ValueError("meta names a value twice")
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"meta: {error!r:.80}") from None
    return count, cells


def meta_length(payload: bytes) -> int:
    """The length of the JSON at the head of a payload, in bytes."""
    return _U32.unpack_from(payload)[0]
