"""One run from its config to a closed folder."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from analysis.history import JOURNAL, PARQUET
from analysis.parquet import write_parquet
from minigpt.atomic import write_atomically
from minigpt.checkpoint import CheckpointWriter
from minigpt.records import TRAIN_LOSS, StepRecord
from minigpt.tokenizer import TOKENIZER_PATH
from minigpt.training import Session, TrainingPlan
from runners.config import RunConfig, run_name
from runners.folders import CHECKPOINTS, CONFIG, VOCABULARY, create_run_folder
from runners.journal import JournalWriter
from runners.manifest import now, open_manifest, public_config, write_manifest
from runners.tracker import Tracker

OnStep = Callable[[str, int, int, float], None]  # name, step, steps, loss


class Terminated(BaseException):
    """SIGTERM arrived; like KeyboardInterrupt, not an error of the code."""


@dataclass(frozen=True)
class RunResult:
    """What a run left behind.

    Attributes:
        folder: its run folder.
        status: finished, failed or killed.
        steps: steps recorded.
        final_loss: raw loss of the last recorded step, NaN without one.
        training_seconds: from before step 0 until the last record is in the journal.
    """

    folder: Path
    status: str
    steps: int
    final_loss: float
    training_seconds: float


def training_plan(config: RunConfig) -> TrainingPlan:
    """What ``minigpt`` needs of a config."""
    return TrainingPlan(
        model=config.model,
        optimizer=config.optimizer,
        schedule=config.schedule,
        loader=config.loader,
        injection=config.injection,
        cadence=config.cadence,
        seed=config.seed,
        data_seed=config.data_seed,
        injection_step=config.injection_step,
        clip=config.clip,
        steps=config.steps,
        threads=config.threads,
    )


def execute(
    config: RunConfig,
    tracker: Tracker,
    on_step: OnStep,
    sweep: str | None = None,
) -> RunResult:
    """Train, record and close one run.

    Whatever ends the run early, what was recorded stays and the folder is closed
    with the reason in its manifest.

    Args:
        config: the choices.
        tracker: told of the folder before step 0.
        on_step: called after each recorded step.
        sweep: id of the sweep the run belongs to.

    Raises:
        InputError: parts of the config do not fit; no folder was made.
        OSError: the folder cannot be written.
        KeyboardInterrupt, Terminated: after the folder was closed as killed.
    """
    session = Session(training_plan(config))
    folder = create_run_folder(Path(config.paths.root), run_name(config))
    manifest = open_manifest(config, session, folder, sweep)
    write_manifest(folder, manifest)
    _write_companions(config, folder)
    recorder = _Recorder(config, session, folder, on_step)
    tracker.follow(folder)
    try:
        with _sigterm_raises():
            recorder.run()
    except (KeyboardInterrupt, Terminated) as signal_:
        _close(folder, manifest, recorder, "killed", type(signal_).__name__)
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        _close(folder, manifest, recorder, "failed", reason)
        raise
    finally:
        session.close()
    _close(folder, manifest, recorder, "finished", None)
    return RunResult(
        folder, "finished", recorder.steps, recorder.loss, recorder.seconds
    )


class _Recorder:
    """Pulls records out of a session into journal and checkpoints."""

    def __init__(
        self, config: RunConfig, session: Session, folder: Path, on_step: OnStep
    ) -> None:
        self._session, self._on_step, self._name = session, on_step, folder.name
        self._total = config.steps
        self._loss_at = session.layout.scalars.index(TRAIN_LOSS)
        self._journal = JournalWriter(folder / JOURNAL, session.layout)
        self._checkpoints = CheckpointWriter(folder / CHECKPOINTS, config.checkpoint)
        self.steps = 0
        self.loss = self.seconds = float("nan")

    def run(self) -> None:
        start = time.perf_counter()
        for record in self._session.records():
            self._take(record)
        self._journal.flush()
        self.seconds = time.perf_counter() - start

    def _take(self, record: StepRecord) -> None:
        self._journal.append(record)
        self._checkpoints.offer(self._session)
        self.steps = record.step + 1
        self.loss = float(record.scalars[self._loss_at])
        self._on_step(self._name, record.step, self._total, self.loss)

    def close(self) -> None:
        try:
            self._journal.close()
        finally:
            self._checkpoints.close()


def _write_companions(config: RunConfig, folder: Path) -> None:
    """The config as a person reads it, and the vocabulary of the token ids."""
    text = yaml.safe_dump(public_config(config), sort_keys=False, allow_unicode=True)
    write_atomically(folder / CONFIG, text.encode())
    write_atomically(folder / VOCABULARY, TOKENIZER_PATH.read_bytes())


def _close(
    folder: Path,
    manifest: dict[str, Any],
    recorder: _Recorder,
    status: str,
    error: str | None,
) -> None:
    """Compact the journal into Parquet and complete the manifest.

    On a disk that is full the journal stays as the record; it is whole up to its
    last block.
    """
    manifest |= {"status": status, "error": error, "ended_at": now()}
    try:
        recorder.close()
        summary = write_parquet(folder / JOURNAL, folder / PARQUET)
    except OSError:
        write_manifest(folder, manifest)
        if status == "finished":
            raise
        return
    manifest["record"] = {"rows": summary.rows, "sha256": summary.sha256}
    write_manifest(folder, manifest)
    (folder / JOURNAL).unlink()


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM unwind the stack; it would otherwise skip every ``finally``."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
