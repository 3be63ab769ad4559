"""A sign of life for those who cannot see the process: a file touched now and then."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from runners.folders import HEARTBEAT

BEAT_SECONDS = 5.0


class Heartbeat:
    """Touches the file ``heartbeat`` of a run folder from a thread of its own.

    A step may take minutes, and then nothing else in the folder changes.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / HEARTBEAT
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)  # a run that has ended needs no sign

    def _beat(self) -> None:
        while True:
            touch(self._path)
            if self._end.wait(BEAT_SECONDS):
                return


def touch(path: Path) -> None:
    """Set the time of a file to now; made if missing.

    A full or vanished disk is no reason to end a training: the record's own writer
    meets it too, and says so.
    """
    with suppress(OSError):
        path.touch()
        os.utime(path)
