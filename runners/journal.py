"""Appends step records to the journal of a run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.extension import extended
from analysis.journal import encode_block, encode_extension, encode_header
from minigpt.records import RecordLayout, StepRecord

MAX_BEHIND_SECONDS = 0.5
MAX_RECORDS = 1024


class JournalWriter:
    """Gathers records and writes them in blocks, at most a second behind.

    A block is one ``write`` to an unbuffered file: what the call returned from
    survives the death of the process. No thread watches the time: only a step that
    takes half a second longer than the one before it can make the disk later.

    Args:
        path: the file; must not exist yet, unless ``reopened``.
        layout: the columns of the records.
        reopened: rows that the file holds already, as ``runners.reopen`` left it,
            which ends with its last whole block; the header is not written again.

    Attributes:
        rows: records in whole blocks on the disk.
        last: the newest of them that this writer wrote, None without one.
    """

    def __init__(
        self, path: Path, layout: RecordLayout, reopened: int | None = None
    ) -> None:
        self._path, self._layout = path, layout
        self._records: list[StepRecord] = []
        self._oldest = 0.0
        self._last = time.monotonic()
        self.rows = reopened or 0
        self.last: StepRecord | None = None
        self._file = path.open("xb" if reopened is None else "r+b", buffering=0)
        self._file.seek(0, os.SEEK_END)
        try:
            if reopened is None:
                self._write(encode_header(layout))
        except OSError:
            self._file.close()
            raise

    def append(self, record: StepRecord) -> None:
        """Take one record.

        Raises:
            OSError: a block could not be written; those before are whole.
        """
        now = time.monotonic()
        if not self._records:
            self._oldest = now
        self._records.append(record)
        # The next record comes about as late as this one did.
        expected = now - self._last
        self._last = now
        behind = now - self._oldest + expected
        if behind > MAX_BEHIND_SECONDS or len(self._records) >= MAX_RECORDS:
            self.flush()

    def extend(self, occasional: Sequence[str], arrays: Mapping[str, str]) -> None:
        """Add columns to the layout, behind what was gathered without them.

        Raises:
            OSError: as ``append``; the layout is as it was.
        """
        self.flush()
        self._write(encode_extension(self._layout, occasional, arrays))
        self._layout = extended(self._layout, occasional, arrays)

    def flush(self) -> None:
        """Write what was gathered as one block, or keep it for the next attempt."""
        if self._records:
            self._write(encode_block(self._layout, self._records))
            self.rows += len(self._records)
            self.last = self._records[-1]
            self._records = []

    def close(self) -> None:
        """Write the rest and close the file, also when that write fails."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _write(self, data: bytes) -> None:
        """Write everything or cut the file back to the last whole block."""
        start, view = self._file.tell(), memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._file.truncate(start)
            self._file.seek(start)
            # The system does not say which file it was.
            raise OSError(error.errno, error.strerror, str(self._path)) from error
