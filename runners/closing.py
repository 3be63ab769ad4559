"""Closing a run folder: the record compacted, the manifest completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.history import JOURNAL, PARQUET
from analysis.journal import NotBegun
from analysis.parquet import write_parquet
from minigpt.records import InputError
from runners.folders import (
    HEARTBEAT,
    iso_time,
    last_sign,
    release_room,
    write_manifest,
)

if TYPE_CHECKING:  # the shipper closes folders too, and does without torch
    from runners.recorder import Recorder

# A full disk; or a folder that somebody removed while the run was training.
_FAILURES = (OSError, InputError)


@dataclass(frozen=True)
class RunResult:
    """What a run left behind.

    Attributes:
        folder: its run folder.
        status: finished, failed or killed.
        steps: steps recorded.
        final_loss: raw loss of the last of them, NaN without one.
        training_seconds: from before step 0 until the last record is in the journal.
        error: why it did not finish.
        violations: kind -> how often a rare token met itself in a stratified batch;
            "unavoidable" or "heuristic_miss".
    """

    folder: Path
    status: str
    steps: int
    final_loss: float
    training_seconds: float
    error: str | None = None
    violations: dict[str, int] = field(default_factory=dict)


class Closing:
    """Closes one run folder as far as the disk allows; called once.

    On a full disk the journal stays as the record, whole up to its last block, and
    a manifest that still says "running" is read as killed.

    Args:
        folder: the run folder.
        manifest: as it was opened.
        recorder: the run's writers.

    Attributes:
        folder: the run folder.
        failure: the first thing that could not be done.
    """

    def __init__(
        self, folder: Path, manifest: dict[str, Any], recorder: Recorder
    ) -> None:
        self.folder, self._manifest, self._recorder = folder, manifest, recorder
        self.failure: Exception | None = None

    def close(self, status: str, error: str | None) -> RunResult:
        """Close the folder; a finished run that cannot be closed has failed."""
        self._attempt(self._recorder.close)
        self._attempt(lambda: _compact(self.folder, self._manifest))
        self._attempt(lambda: release_room(self.folder))
        if self.failure and status == "finished":
            status, error = "failed", describe(self.failure)
        self._manifest |= {"status": status, "error": error, "ended_at": iso_time()}
        violations = self._recorder.violations
        self._manifest["data"]["loader_violations"] = violations
        if replay := self._recorder.replay:
            replay.report(self._manifest["resumes"][-1])
        self._attempt(lambda: write_manifest(self.folder, self._manifest))
        if not self.failure:
            self._attempt(lambda: _drop_journal(self.folder, self._manifest))
        if self.failure and status == "finished":
            status, error = "failed", describe(self.failure)
        rows, loss = self._recorder.rows, self._recorder.loss
        seconds = self._recorder.seconds
        return RunResult(self.folder, status, rows, loss, seconds, error, violations)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except _FAILURES as error:
            locate(error, self.folder)
            self.failure = self.failure or error


def close_killed(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Close the folder of a run whose process is dead; its manifest as it is then.

    A run that died before its first record has none, and its manifest says so.

    Raises:
        OSError: the folder cannot be written.
        InputError: the journal cannot be read.
    """
    manifest = dict(manifest)
    ended = last_sign(folder)
    release_room(folder)
    try:
        _compact(folder, manifest)
    except NotBegun:
        (folder / JOURNAL).unlink(missing_ok=True)
    manifest |= {"status": "killed", "ended_at": iso_time(ended)}
    manifest["error"] = "the process died without closing the run"
    write_manifest(folder, manifest)
    if manifest["record"]:
        _drop_journal(folder, manifest)
    (folder / HEARTBEAT).unlink(missing_ok=True)
    return manifest


def _compact(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the record as Parquet and its hash into the manifest.

    Raises:
        NotBegun: the process died before it recorded anything.
        InputError: the journal cannot be read.
        OSError: the folder cannot be written.
    """
    if not (folder / JOURNAL).exists():
        raise NotBegun(f"{folder / JOURNAL}: expected a journal, found no file")
    summary = write_parquet(folder / JOURNAL, folder / PARQUET)
    record = {"rows": summary.rows, "sha256": summary.sha256}
    manifest["record"] = record | ({"note": summary.note} if summary.note else {})


def _drop_journal(folder: Path, manifest: dict[str, Any]) -> None:
    """Remove the journal, unless it holds bytes that no reader understands."""
    if "note" not in manifest["record"]:
        (folder / JOURNAL).unlink()


def locate(error: BaseException, folder: Path) -> None:
    """Let an error of the system that names no file name the run folder."""
    if isinstance(error, OSError) and error.errno and error.filename is None:
        error.filename = str(folder)


def describe(error: BaseException) -> str:
    """An error as a manifest holds it."""
    return f"{type(error).__name__}: {error}"
