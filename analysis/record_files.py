"""The two files that may hold the record of a run folder, and which of them is read.

``record.parquet`` is read if its hash is the manifest's; else a whole journal is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.blocks import Columns, columns_of_block, concatenate
from analysis.journal import JournalReader
from analysis.parquet import read_parquet, sha256_of
from minigpt.records import InputError

MANIFEST = "manifest.json"
PARQUET = "record.parquet"
JOURNAL = "journal.bin"


def declared_record(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest's section on the closed record; empty while the run is open.

    Raises:
        InputError: the section is not an object.
    """
    record = manifest.get("record") or {}
    if not isinstance(record, dict):
        raise InputError(
            f"{folder / MANIFEST}: record: expected an object, found {record!r:.80}"
        )
    return record


def read_record(folder: Path, declared: dict[str, Any], notes: list[str]) -> Columns:
    """The record of a run folder, from the file that is whole.

    Args:
        folder: the run folder.
        declared: what ``declared_record`` gave.
        notes: gets a line about whatever is odd.

    Raises:
        InputError: neither file is there and whole.
    """
    parquet, journal = folder / PARQUET, folder / JOURNAL
    rows, problem = declared.get("rows"), ""
    if parquet.is_file():
        problem = _hash_problem(parquet, declared.get("sha256"))
        if not problem:
            columns = read_parquet(parquet)
            _check_rows(parquet, rows, columns)
            if journal.is_file():
                notes.append(f"{JOURNAL} is there too; {PARQUET} was read")
            return columns
    if not journal.is_file():
        raise InputError(
            problem or f"{folder}: expected {PARQUET} or {JOURNAL}, found neither"
        )
    reader = JournalReader(journal)
    blocks = reader.read_new()  # after which the layout has every column
    block = concatenate(reader.layout, blocks)
    columns, note = columns_of_block(reader.layout, block), reader.note()
    if note and problem:
        raise InputError(f"{problem}; {JOURNAL} is not whole either: {note}")
    _check_rows(journal, rows, columns)
    if declared and not problem:
        notes.append(f"{PARQUET} is missing; {JOURNAL} was read instead")
    if note:
        notes.append(note)
    if problem:
        notes.append(f"{problem}; the whole {JOURNAL} was read instead")
    return columns


def _hash_problem(parquet: Path, declared: Any) -> str:
    if not isinstance(declared, str):
        return f"{parquet}: expected its sha256 in {MANIFEST}, found none"
    try:
        found = sha256_of(parquet)
    except OSError as error:
        return f"{parquet}: expected a readable file, found {error.strerror}"
    if found == declared:
        return ""
    return f"{parquet}: expected sha256 {declared:.16}..., found {found:.16}..."


def _check_rows(path: Path, rows: Any, columns: Columns) -> None:
    found = len(columns.steps)
    if rows is not None and rows != found:
        raise InputError(f"{path}: expected {rows!r:.40} rows, found {found}")
