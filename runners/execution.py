"""One run from its config to a closed folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import yaml

from minigpt.atomic import write_atomically
from minigpt.tokenizer import TOKENIZER_PATH
from minigpt.training import Session, TrainingPlan
from runners.closing import Closing, RunResult, describe, locate
from runners.config import RunConfig
from runners.folders import (
    CONFIG,
    VOCABULARY,
    create_run_folder,
    reserve_room,
    write_manifest,
)
from runners.heartbeat import Heartbeat
from runners.manifest import open_manifest, public_config
from runners.naming import run_name
from runners.recorder import OnStep, Recorder
from runners.signals import INTERRUPTS, deferred, sigterm_raises
from runners.tracker import Tracker

OnEnd = Callable[[RunResult], None]


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


def check(config: RunConfig) -> None:
    """Refuse what only data and model can refuse, without a trace on the disk.

    Raises:
        InputError: parts of the config do not fit; see ``Session``.
    """
    Session(training_plan(config)).close()


def execute(
    config: RunConfig,
    tracker: Tracker,
    on_step: OnStep,
    sweep: str | None = None,
    on_end: OnEnd = lambda result: None,
) -> RunResult:
    """Train, record and close one run.

    Whatever ends the run early, what was recorded stays and the folder is closed
    with the reason in its manifest.

    Args:
        config: the choices.
        tracker: told of the folder before step 0.
        on_step: called after each recorded step.
        sweep: id of the sweep the run belongs to.
        on_end: called once the folder is closed, however the run ended.

    Raises:
        InputError: parts of the config do not fit; no folder was made.
        OSError: the folder cannot be written.
        KeyboardInterrupt, Terminated: after the folder was closed as killed.
    """
    session = Session(training_plan(config))
    try:
        with sigterm_raises():
            recorder, closing = _open(config, session, sweep, on_step)
            return run_to_end(recorder, closing, tracker, on_end)
    finally:
        session.close()


def _open(
    config: RunConfig, session: Session, sweep: str | None, on_step: OnStep
) -> tuple[Recorder, Closing]:
    """Make the run folder; one that cannot be made whole is taken away again."""
    folder = create_run_folder(Path(config.paths.root), run_name(config))
    try:
        manifest = open_manifest(config, session, folder, sweep)
        write_manifest(folder, manifest)
        write_companions(config, folder)
        reserve_room(folder)
        recorder = Recorder(config, session, folder, on_step)
    except BaseException as error:
        locate(error, folder)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return recorder, Closing(folder, manifest, recorder)


def run_to_end(
    recorder: Recorder, closing: Closing, tracker: Tracker, on_end: OnEnd
) -> RunResult:
    """Let an opened run train, and close its folder however that ends.

    Raises:
        OSError, KeyboardInterrupt, Terminated: as ``execute``.
    """
    error: BaseException | None = None
    status, reason = "finished", None
    try:
        tracker.follow(closing.folder)
        with Heartbeat(closing.folder):
            recorder.run()
    except INTERRUPTS as interrupt:
        error, status, reason = interrupt, "killed", type(interrupt).__name__
    except BaseException as failure:  # noqa: BLE001 - raised again below
        locate(failure, closing.folder)
        error, status, reason = failure, "failed", describe(failure)
    with deferred():
        result = closing.close(status, reason)
        on_end(result)
    if error := error or closing.failure:
        raise error
    return result


def write_companions(config: RunConfig, folder: Path) -> None:
    """Write the config as a person reads it, and the vocabulary of the token ids.

    Raises:
        OSError: the folder cannot be written.
    """
    text = yaml.safe_dump(public_config(config), sort_keys=False, allow_unicode=True)
    write_atomically(folder / CONFIG, text.encode())
    write_atomically(folder / VOCABULARY, TOKENIZER_PATH.read_bytes())
