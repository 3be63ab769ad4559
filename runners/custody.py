"""One process at a time ships a run folder, closes it for a dead one, or reopens it.

The lock is the kernel's and ends with the process that holds it: a killed shipper
leaves nothing behind that would have to be removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOENT
from pathlib import Path

from filelock import FileLock, Timeout

from minigpt.records import InputError

LOCK = ".lock"
PATIENCE_SECONDS = 120.0
_WORTH_SAYING_SECONDS = 2.0


class Custody:
    """The lock of a run folder.

    Args:
        folder: the run folder; it must exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, FileLock(folder / LOCK)

    def take(self, seconds: float = 0.0) -> bool:
        """Whether the folder could be had within so many seconds.

        Raises:
            OSError: the folder is gone or cannot be written.
        """
        if not self._folder.is_dir():  # the lock would make it again
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(self._folder))
        try:
            self._lock.acquire(timeout=seconds)
        except Timeout:
            return False
        return True

    def give_up(self) -> None:
        """Let others have the folder; harmless if it was not taken."""
        self._lock.release(force=True)


@contextmanager
def held(folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold a run folder, once whoever ships it has finished with it.

    Args:
        folder: the run folder.
        tell: is given a line if that takes long.

    Raises:
        InputError: it did not within two minutes.
        OSError: the folder cannot be written.
    """
    custody = Custody(folder)
    if not custody.take(_WORTH_SAYING_SECONDS):
        tell(f"{folder.name}: waiting for the process that ships it to MLflow")
        if not custody.take(PATIENCE_SECONDS):
            raise InputError(
                f"{folder}: expected a run that no other process works on, found one "
                "that has shipped it for two minutes; try again later"
            )
    try:
        yield
    finally:
        custody.give_up()
