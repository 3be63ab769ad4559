"""Pulls the records out of a training session into journal and checkpoints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from analysis.history import JOURNAL
from minigpt.checkpoint import CheckpointWriter
from minigpt.records import TRAIN_LOSS, StepRecord
from minigpt.snapshot import take_snapshot
from minigpt.training import Session
from runners.config import RunConfig
from runners.folders import CHECKPOINTS
from runners.journal import JournalWriter
from runners.replay import Replay
from runners.signals import between_steps

OnStep = Callable[[str, int, int, float], None]  # folder's name, step, steps, loss


class Recorder:
    """One run's writers.

    Args:
        config: the choices.
        session: what yields the records.
        folder: the run folder.
        on_step: called after each step.
        rows: steps that a reopened journal holds; None begins a new one.

    Attributes:
        seconds: from before the first step until the last record is in the journal.
        replay: the recorded steps that are trained again, if any.
    """

    def __init__(
        self,
        config: RunConfig,
        session: Session,
        folder: Path,
        on_step: OnStep,
        rows: int | None = None,
    ) -> None:
        self._session, self._on_step, self._name = session, on_step, folder.name
        self._total, self._every = config.steps, config.checkpoint.every
        self._loss_at = session.layout.scalars.index(TRAIN_LOSS)
        journal = folder / JOURNAL
        self.replay = None if rows is None else Replay(journal, session.step)
        self._checkpoints = CheckpointWriter(folder / CHECKPOINTS, config.checkpoint)
        self._journal = JournalWriter(journal, session.layout, rows)
        self._loss = float("nan")
        self.seconds = float("nan")

    @property
    def rows(self) -> int:
        """Steps in whole blocks of the journal."""
        return self._journal.rows

    @property
    def loss(self) -> float:
        """Raw loss of the last of them, NaN without one."""
        last = self._journal.last
        return self._loss if last is None else float(last.scalars[self._loss_at])

    @property
    def violations(self) -> dict[str, int]:
        """Rare tokens that met in a stratified batch all the same, by kind."""
        return dict(Counter(v.kind for v in self._session.loader.violations))

    def run(self) -> None:
        """Take every record of the session.

        A signal is waited for between two steps: the state of the session is whole
        then, and is written as a checkpoint.

        Raises:
            OSError: journal or checkpoint could not be written.
            KeyboardInterrupt, Terminated: on a signal.
        """
        start = time.perf_counter()
        with between_steps() as signals:
            for record in self._session.records():
                self._take(record)
                if signals.arrived:
                    self._save()
                    signals.raise_it()
        self._journal.flush()
        self.seconds = time.perf_counter() - start

    def _take(self, record: StepRecord) -> None:
        loss = float(record.scalars[self._loss_at])
        if self.replay and self.replay.take(record):
            self._loss = loss
        else:
            self._journal.append(record)
        if self._every and self._session.step % self._every == 0:
            self._journal.flush()  # no checkpoint is ahead of the journal
            self._checkpoints.offer(self._session)
        self._on_step(self._name, record.step, self._total, loss)

    def _save(self) -> None:
        self._journal.flush()
        if self._every:
            self._checkpoints.write(take_snapshot(self._session))

    def close(self) -> None:
        """Write the rest and close both, each also when the other fails.

        Raises:
            OSError: as ``run``.
        """
        try:
            self._checkpoints.close()
        finally:
            self._journal.close()
