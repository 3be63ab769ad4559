"""Writes the rows of a script's run from a thread, so that no step waits for a disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from analysis.history import JOURNAL
from minigpt.records import RecordLayout, StepRecord
from runners.folders import HEARTBEAT
from runners.heartbeat import BEAT_SECONDS, touch
from runners.journal import JournalWriter

FLUSH_SECONDS = 0.25  # a killed run loses the rows of the last one of these
MAX_WAITING = 100_000  # rows that wait for a disk without room

_Columns = tuple[Sequence[str], Mapping[str, str]]


class RowWriter:
    """The journal of a run folder and its heartbeat, both written by one thread.

    Only that thread touches the journal; what it is given waits in a queue, which
    needs no lock. A disk that has no room is tried again until it has.

    Args:
        folder: the run folder.
        tell: is given a line once the journal cannot be written.

    Attributes:
        rows: whole rows on the disk.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder, self._tell = folder, tell
        self._journal: JournalWriter | None = None
        self._waiting: deque[StepRecord | _Columns] = deque()
        self._failed = False
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="loss-autopsy", daemon=True
        )
        self._thread.start()

    @property
    def rows(self) -> int:
        """Rows in whole blocks of the journal."""
        return self._journal.rows if self._journal else 0

    def open(self, layout: RecordLayout, reopened: int | None = None) -> None:
        """Begin the journal, or go on with one that ``runners.reopen`` left.

        Raises:
            OSError: it cannot be written.
        """
        self._journal = JournalWriter(self._folder / JOURNAL, layout, reopened)

    def extend(self, occasional: Sequence[str], arrays: Mapping[str, str]) -> None:
        """Let the rows from here on have these columns too."""
        self._waiting.append((occasional, arrays))

    def put(self, record: StepRecord) -> None:
        """Take a row.

        Raises:
            OSError: too many rows wait for a disk that cannot be written.
        """
        if len(self._waiting) >= MAX_WAITING and not self._end.is_set():
            raise OSError(f"{self._folder}: {MAX_WAITING} rows could not be written")
        self._waiting.append(record)

    def stop(self) -> None:
        """End the thread; what is put from here on is written by ``close``."""
        self._end.set()
        self._thread.join()
        with suppress(OSError):
            (self._folder / HEARTBEAT).unlink(missing_ok=True)

    def close(self) -> None:
        """Write the rest.

        Raises:
            OSError: the rest cannot be written; the journal ends with a whole row.
        """
        self.stop()
        if self._journal:
            try:
                self._write()
            finally:
                self._journal.close()

    def _run(self) -> None:
        beaten = -BEAT_SECONDS
        while not self._end.wait(FLUSH_SECONDS):
            if monotonic() - beaten >= BEAT_SECONDS:
                beaten = monotonic()
                touch(self._folder / HEARTBEAT)
            try:
                self._write()
            except OSError as error:
                if not self._failed:
                    self._tell(f"{error}; what is logged is kept until there is room")
                self._failed = True

    def _write(self) -> None:
        """Write what waits; what cannot be written stays in its place."""
        if self._journal is None:
            return
        while self._waiting:
            if isinstance(self._waiting[0], StepRecord):
                # The journal keeps a record that it has taken, written or not.
                self._journal.append(self._waiting.popleft())
            else:
                self._journal.extend(*self._waiting[0])
                self._waiting.popleft()
        self._journal.flush()
