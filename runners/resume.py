"""``autopsy train resume=RUN``: a run goes on in its folder, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from minigpt.checkpoint import newest_checkpoint
from minigpt.records import InputError
from minigpt.snapshot import restore
from minigpt.training import Session
from runners.closing import Closing, RunResult
from runners.config import config_hash
from runners.custody import held
from runners.execution import (
    OnEnd,
    run_to_end,
    training_plan,
    write_companions,
)
from runners.folders import CHECKPOINTS
from runners.manifest import code_hash, public_config
from runners.recorder import OnStep, Recorder
from runners.reopen import CUT, OpenRecord, check_reopens, open_record, reopen
from runners.resume_plan import Resume, check_steps
from runners.signals import sigterm_raises
from runners.tracker import Tracker


def resume(
    plan: Resume,
    tracker: Tracker,
    on_step: OnStep,
    on_end: OnEnd,
    tell: Callable[[str], None],
) -> RunResult:
    """Train the rest of a run.

    Args:
        plan: the run.
        tracker: told of the folder before the first step.
        on_step: called after each step.
        on_end: called once the folder is closed, however the run ended.
        tell: is given lines about where the run goes on.

    Raises:
        InputError: the folder cannot be gone on with.
        OSError: the folder cannot be written.
        KeyboardInterrupt, Terminated: after the folder was closed as killed.
    """
    session = Session(training_plan(plan.config))
    try:
        with sigterm_raises():
            recorder, closing = _open(plan, session, on_step, tell)
            try:
                return run_to_end(recorder, closing, tracker, on_end)
            finally:
                _tell_replay(plan.folder, recorder, tell)
    finally:
        session.close()


def _tell_replay(folder: Path, recorder: Recorder, tell: Callable[[str], None]) -> None:
    replay = recorder.replay
    difference = replay and replay.difference
    if replay and replay.steps and not (difference or replay.left):
        tell(
            f"{folder.name}: the {replay.steps} steps that were trained again are "
            "those of the record, bit for bit"
        )
    if difference:
        tell(
            f"{folder.name}: {difference.count} steps that were trained again differ "
            f"from the record, first step {difference.first_step} in "
            f"{difference.column}; the record is kept, and is not that of one run"
        )


def _open(
    plan: Resume, session: Session, on_step: OnStep, tell: Callable[[str], None]
) -> tuple[Recorder, Closing]:
    folder = plan.folder
    with held(folder, tell):
        manifest = check_reopens(folder)
        record = open_record(folder, manifest)
        _check_fits(plan, session, record)
        for line in _restore(session, folder, record):
            tell(f"{folder.name}: {line}")
        rows = record.rows if record.reader else None
        recorder = Recorder(plan.config, session, folder, on_step, rows)
        manifest["config"] = public_config(plan.config)
        manifest["tracking"] = manifest["config"]["tracking"]
        manifest["config_hash"] = config_hash(plan.config)
        dated = [one | {"step": record.next_step} for one in plan.changes]
        manifest["config_changes"] = [*manifest.get("config_changes", []), *dated]
        write_companions(plan.config, folder)
        facts = {"from_step": session.step, "code_hash": code_hash()}
        manifest = reopen(folder, manifest, record, **facts)
    return recorder, Closing(folder, manifest, recorder)


def _check_fits(plan: Resume, session: Session, record: OpenRecord) -> None:
    check_steps(plan.config, record.rows)
    if record.reader and record.reader.layout != session.layout:
        raise InputError(
            f"{plan.folder.name}: expected the columns that this code records, found "
            "others; the run goes on with the code that began it"
        )


def _restore(session: Session, folder: Path, record: OpenRecord) -> Iterator[str]:
    """Put the session where the record can be gone on with; what to tell of it."""
    if record.lost:
        yield f"{record.lost} bytes of an unfinished block were put into {CUT}"
    at = record.next_step
    snapshot, problems = newest_checkpoint(folder / CHECKPOINTS, at)
    for problem in problems:
        yield f"{problem}; the one before it is used"
    if snapshot:
        restore(session, snapshot)
    where = f"checkpoint of step {session.step}" if snapshot else "start, no checkpoint"
    again = f"; {at - session.step} are trained again and compared"
    yield (
        f"goes on from the {where}: {record.rows} steps are recorded"
        f"{again if at > session.step else ''}"
    )
