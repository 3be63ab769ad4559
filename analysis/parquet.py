"""The closed form of a record: one Parquet file, compacted from the journal.

One column a name, every value bit for bit that of the journal. The layout travels
in the schema's metadata, and the schema must be exactly the one it implies.
An occasional column is null where nothing was measured, which is not NaN.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.blocks import Block, Columns, concatenate
from analysis.journal import JournalReader, layout_from_json
from minigpt.records import InputError, RecordLayout

LAYOUT_KEY = b"loss_autopsy.layout"
MAX_GROUP_BYTES = 256 << 20  # a row group is written no later than at this size
_CONSTANT = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class ParquetSummary:
    """What ``write_parquet`` wrote.

    Attributes:
        rows: steps in the file.
        sha256: of the whole file, in hexadecimal.
        note: what the journal held beyond its complete blocks, or None.
    """

    rows: int
    sha256: str
    note: str | None = None


def sha256_of(path: Path) -> str:
    """The hexadecimal sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def schema_of(layout: RecordLayout) -> pa.Schema:
    """The Arrow schema of a record with this layout, which it carries as JSON."""
    fields = [pa.field("step", pa.int64(), nullable=False)]
    kinds = (
        (layout.scalars, pa.float64()),
        (layout.tensors, pa.float32()),
        (layout.integers, pa.uint64()),
    )
    for names, kind in kinds:
        fields += [pa.field(name, kind, nullable=False) for name in names]
    fields += [pa.field(name, pa.float64()) for name in layout.occasional]
    for name, dtype in layout.arrays.items():
        entries = pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))
        fields.append(pa.field(name, entries, nullable=False))
    fields += [pa.field(name, _CONSTANT, nullable=False) for name in layout.constants]
    return pa.schema(fields, {LAYOUT_KEY: json.dumps(layout.to_json()).encode()})


# -- writing -----------------------------------------------------------------------


def write_parquet(
    journal_path: str | Path, parquet_path: str | Path, rows_per_group: int = 8192
) -> ParquetSummary:
    """Compact the complete blocks of a journal into a Parquet file.

    Memory is bounded by one row group, whatever the length of the run. The file
    appears under its name only when it is whole and on the disk. A journal that
    gained columns is read twice: the file names them all at its beginning.

    Raises:
        InputError: ``journal_path`` is not a journal.
    """
    reader = JournalReader(journal_path)
    layout = reader.layout
    target = Path(parquet_path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        while (rows := _write(reader, layout, partial, rows_per_group)) is None:
            for _ in reader.blocks():
                pass  # to the end, where every column is known
            layout, reader = reader.layout, JournalReader(journal_path)
        sha256 = sha256_of(partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    _sync_folder(target.parent)
    return ParquetSummary(rows, sha256, reader.note())


def _write(
    reader: JournalReader, layout: RecordLayout, path: Path, rows_per_group: int
) -> int | None:
    """Write what the reader gives; the rows, None if the layout has not all columns."""
    with path.open("wb") as file:
        rows = _write_groups(reader, layout, file, rows_per_group)
        file.flush()
        os.fsync(file.fileno())
    return rows


def _write_groups(
    reader: JournalReader, layout: RecordLayout, file: BinaryIO, rows_per_group: int
) -> int | None:
    written, rows, nbytes, pending = 0, 0, 0, []
    options = {"compression": "zstd", "use_dictionary": list(layout.constants)}
    with pq.ParquetWriter(file, schema_of(layout), **options) as writer:
        for block in reader.blocks():
            if _columns_of(reader.layout) > _columns_of(layout):
                return None
            full = rows + len(block) > rows_per_group or nbytes > MAX_GROUP_BYTES
            if pending and full:
                writer.write_table(_table(layout, pending))
                written, rows, nbytes, pending = written + rows, 0, 0, []
            pending.append(block)
            rows, nbytes = rows + len(block), nbytes + block.nbytes
        writer.write_table(_table(layout, pending))
    return None if _columns_of(reader.layout) > _columns_of(layout) else written + rows


def _columns_of(layout: RecordLayout) -> int:
    """How many there are of those that a journal may gain."""
    return len(layout.occasional) + len(layout.arrays)


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _table(layout: RecordLayout, blocks: list[Block]) -> pa.Table:
    block = concatenate(layout, blocks)
    count = len(block)
    columns = [pa.array(block.steps)]
    for matrix in (block.scalars, block.tensors, block.integers):
        columns += [pa.array(np.ascontiguousarray(column)) for column in matrix.T]
    occasional = {
        name: (np.zeros(count), np.ones(count, bool)) for name in layout.occasional
    }
    for row, name, value in block.occasional:
        values, absent = occasional[name]
        values[row], absent[row] = value, False
    columns += [pa.array(values, mask=absent) for values, absent in occasional.values()]
    for lengths, entries in block.arrays.values():
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        columns.append(pa.ListArray.from_arrays(offsets, pa.array(entries)))
    for text in layout.constants.values():
        codes = pa.array(np.zeros(count, np.int32))
        columns.append(pa.DictionaryArray.from_arrays(codes, pa.array([text])))
    return pa.Table.from_arrays(columns, schema=schema_of(layout))


# -- reading -----------------------------------------------------------------------


def read_parquet(path: Path) -> Columns:
    """Read a record written by ``write_parquet``.

    Raises:
        InputError: the file is not such a record, or is damaged.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            layout = layout_from_json(
                (schema.metadata or {}).get(LAYOUT_KEY, b""), path.name
            )
            if not schema.equals(schema_of(layout)):
                raise InputError(
                    f"{path}: expected the columns of its layout, found others"
                )
            table = file.read()
            table.validate(full=True)
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise InputError(
            f"{path}: expected a Parquet record, found {first:.200}"
        ) from None
    return _columns_of_table(layout, table, path)


def _columns_of_table(layout: RecordLayout, table: pa.Table, path: Path) -> Columns:
    flat, measured, arrays = {}, {}, {}
    for name in ("step", *layout.scalars, *layout.tensors, *layout.integers):
        flat[name] = _without_nulls(table[name], name, path)
    for name in layout.occasional:
        column = table[name]
        measured[name] = column.is_valid().to_numpy()
        flat[name] = column.fill_null(np.nan).to_numpy()
    for name in layout.arrays:
        lengths = _without_nulls(pc.list_value_length(table[name]), name, path)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        values = pc.list_flatten(table[name])
        arrays[name] = _without_nulls(values, name, path), offsets
    return Columns(layout, flat.pop("step"), flat, measured, arrays)


def _without_nulls(column: pa.ChunkedArray, name: str, path: Path) -> np.ndarray:
    if column.null_count:
        raise InputError(
            f"{path}: column {name}: expected no nulls, found {column.null_count}"
        )
    return column.to_numpy()
