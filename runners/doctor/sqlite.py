"""The doctor's look at a SQLite store, through connections that change nothing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from runners.doctor.check import OK, PROBLEM, WARNING, Check
from runners.doctor.folder import check_file_system
from runners.doctor.schema import check_schema
from runners.settings import sqlite_path

LOCK_SECONDS = 2.0  # longer than any of our writes holds it
_FILE, _LOCK = "file of the store", "lock of the store"
_LOCKS = Path("/proc/locks")
_RESTORE = "restore it from a copy, or move it away and run `autopsy sync`"


def check_sqlite(address: str) -> list[Check]:
    """Rows about the file; few of them where it is none."""
    path = sqlite_path(address).absolute()
    if not os.path.lexists(path):
        return [Check(_FILE, OK, f"{path.name}: none yet; the first run makes it")]
    if not path.is_file():
        found = f"{path.name}: no file, but a folder or a link that leads nowhere"
        return [Check(_FILE, PROBLEM, found, "move it away")]
    if not path.stat().st_size:
        return [Check(_FILE, OK, "empty; the first run makes its tables")]
    file_system = check_file_system("store", path.parent)
    try:
        return [*_look(path, address), file_system]
    except sqlite3.DatabaseError as error:
        return [_refused(path, error), file_system]


def _look(path: Path, address: str) -> list[Check]:
    with closing(_connect(path, "ro")) as database:
        verdicts = [row for (row,) in database.execute("PRAGMA quick_check(3)")]
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {name for (name,) in tables}
        versions = []
        if "alembic_version" in tables:
            rows = database.execute("SELECT version_num FROM alembic_version")
            versions = [version for (version,) in rows]
    if verdicts != ["ok"]:
        return [Check(_FILE, PROBLEM, f"damaged: {'; '.join(verdicts)}", _RESTORE)]
    if not tables:
        return [Check(_FILE, OK, "whole, no tables yet; the first run makes them")]
    whole = Check(_FILE, OK, f"whole, {path.stat().st_size / 1e6:.1f} MB")
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        found = "it, or the folder it is in, cannot be written"
        whole = Check(_FILE, PROBLEM, found, "the right to write there")
        return [whole, check_schema(versions, address)]
    return [whole, _lock(path), check_schema(versions, address)]


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS, isolation_level=None)


def _lock(path: Path) -> Check:
    """Whether one could write now; the lock is given back unused."""
    with closing(_connect(path, "rw")) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            return _held(path)
        database.execute("ROLLBACK")
    return Check(_LOCK, OK, "free")


def _held(path: Path) -> Check:
    found = f"held for more than {LOCK_SECONDS:.0f} s by {_holders(path)}"
    return Check(_LOCK, WARNING, found, "if that goes on, end what holds it")


def _holders(path: Path) -> str:
    """The processes that have a lock on the file, as far as the system tells."""
    if not _LOCKS.is_file():
        return "another process"
    inode = f":{path.stat().st_ino}"
    fields = [line.split() for line in _LOCKS.read_text().splitlines()]
    found = {one[4] for one in fields if len(one) > 5 and one[5].endswith(inode)}
    return f"process {', '.join(sorted(found))}" if found else "another process"


def _refused(path: Path, error: sqlite3.DatabaseError) -> Check:
    """Why the file cannot be read at all."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return _held(path)
    if code == sqlite3.SQLITE_READONLY_ROLLBACK:
        found = f"{path.name}-journal holds half a write of a process that died"
        advice = "nothing: who opens the store next takes it back"
        return Check(_FILE, WARNING, found, advice)
    if code & 0xFF == sqlite3.SQLITE_NOTADB:
        return Check(_FILE, PROBLEM, f"{path.name}: {error}", _RESTORE)
    return Check(_FILE, PROBLEM, f"damaged: {error}", _RESTORE)
