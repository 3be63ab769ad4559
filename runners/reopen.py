"""A run that ended early, opened again in its own folder.

What was recorded stays as it is, and so do its times: a step that is trained again
is not recorded again. ``runners.custody.held`` is held around all of it, and each part
can be repeated after a crash in it: the record is at no moment in one half written
file alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.history import JOURNAL, PARQUET
from analysis.journal import JournalReader, NotBegun
from analysis.parquet import read_parquet, sha256_of
from analysis.rejournal import encode_journal
from minigpt.atomic import write_atomically
from minigpt.records import InputError
from runners.folders import iso_time, last_sign, reserve_room, write_manifest
from runners.manifest_check import read_whole_manifest
from runners.owner import ALIVE, UNKNOWN, liveness, owner

CUT = "journal.cut"  # what a reopened journal held after its last whole block


@dataclass(frozen=True)
class OpenRecord:
    """A journal that can be appended to.

    Attributes:
        reader: of the journal, at its end; None if nothing was ever recorded.
        rows: steps recorded so far.
        next_step: the step after the last of them.
        lost: bytes after the last whole block, kept in the file ``CUT``.
    """

    reader: JournalReader | None
    rows: int
    next_step: int
    lost: int


def check_reopens(folder: Path) -> dict[str, Any]:
    """The manifest of a run that nobody writes any more.

    Raises:
        InputError: no run folder, or its process lives or may live.
    """
    manifest = read_whole_manifest(folder)
    if manifest["status"] != "running":
        return manifest
    lives, who = liveness(manifest.get("owner"), last_sign(folder)), _who(manifest)
    if lives == ALIVE:
        raise InputError(
            f"{folder.name}: expected a run that has ended, found one that process "
            f"{who} is training"
        )
    if lives == UNKNOWN:
        raise InputError(
            f"{folder.name}: expected a run that is known to have ended; whether "
            f"process {who} still trains it cannot be told from here. If it does not, "
            f"close the run first: autopsy sync {folder.name} --dead"
        )
    return manifest


def _who(manifest: dict[str, Any]) -> str:
    who = manifest.get("owner")
    who = who if isinstance(who, dict) else {}
    return f"{who.get('pid', 'unknown')} of host {who.get('host', 'unknown')}"


def open_record(folder: Path, manifest: dict[str, Any]) -> OpenRecord:
    """Make the journal of a run one that can be appended to.

    Raises:
        InputError: the record is damaged or gone.
        OSError: the folder cannot be written; nothing recorded is lost.
    """
    journal, parquet = folder / JOURNAL, folder / PARQUET
    record = manifest.get("record") or {}
    if parquet.is_file() and sha256_of(parquet) == record.get("sha256"):
        write_atomically(journal, encode_journal(read_parquet(parquet)))
    elif record.get("rows") and not journal.is_file():
        raise InputError(
            f"{folder.name}: expected the record of {record['rows']} steps, found "
            f"neither {JOURNAL} nor the {PARQUET} that its manifest names"
        )
    reader, rows, following = _read(journal)
    return OpenRecord(reader, rows, following, _cut(journal, reader))


def reopen(
    folder: Path, manifest: dict[str, Any], record: OpenRecord, **facts: Any
) -> dict[str, Any]:
    """Say in the manifest that this process goes on with the run; its new content.

    Args:
        folder: the run folder.
        manifest: as it is, with what is to be changed in it.
        record: as ``open_record`` left it.
        facts: what the manifest is to say of this resume besides step and time.

    Raises:
        OSError: the folder cannot be written.
    """
    resume = {"at_step": record.next_step, "time": iso_time(), **facts}
    manifest = manifest | {
        "status": "running",
        "owner": owner(),
        "record": None,
        "ended_at": None,
        "error": None,
        "resumes": [*manifest.get("resumes", []), resume],
    }
    reserve_room(folder)
    write_manifest(folder, manifest)
    (folder / PARQUET).unlink(missing_ok=True)
    return manifest


def _read(journal: Path) -> tuple[JournalReader | None, int, int]:
    """A reader at the end of the journal, the rows before it and the step after."""
    if not journal.is_file():
        return None, 0, 0
    try:
        reader = JournalReader(journal)
    except NotBegun:
        return None, 0, 0
    rows, following = 0, 0
    for block in reader.blocks():
        rows, following = rows + len(block), int(block.steps[-1]) + 1
    return reader, rows, following


def _cut(journal: Path, reader: JournalReader | None) -> int:
    """Cut the journal after its last whole block; what is cut is kept."""
    if not journal.is_file():
        return 0
    end = reader.offset if reader else 0
    with journal.open("rb") as file:
        file.seek(end)
        rest = file.read()
    if rest:
        with (journal.parent / CUT).open("ab") as kept:
            kept.write(rest)
        os.truncate(journal, end)
    if not reader:
        journal.unlink()
    return len(rest)
