"""``autopsy train resume=RUN``: a run goes on in its folder, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minigpt.checkpoint import newest_checkpoint
from minigpt.records import InputError
from minigpt.snapshot import restore
from minigpt.training import Session
from runners.closing import Closing, RunResult
from runners.compose import compose_config
from runners.config import RunConfig, config_hash, leaves, to_plain
from runners.custody import held
from runners.execution import OnEnd, run_to_end, training_plan
from runners.folders import CHECKPOINTS
from runners.manifest import code_hash, public_config
from runners.recorder import OnStep, Recorder
from runners.reopen import CUT, OpenRecord, check_reopens, open_record, reopen
from runners.schema import from_plain
from runners.settings import HIDDEN
from runners.signals import sigterm_raises
from runners.tracker import Tracker

_CHANGEABLE = ("steps", "tracking", "checkpoint")


@dataclass
class Resume:
    """A run to go on with, and what of its config is to be another.

    Attributes:
        folder: the run folder.
        config: with the changes.
        changes: dotted key, before, after, of what determines the record.
    """

    folder: Path
    config: RunConfig
    changes: list[dict[str, Any]] = field(default_factory=list)


def plan_resume(
    folder: Path, overrides: Sequence[str], search_dir: str | None
) -> Resume:
    """What a resume of this run would train; nothing is changed yet.

    Args:
        folder: of a run that ended early, or of a finished one with ``steps`` more.
        overrides: of ``steps``, ``tracking`` and ``checkpoint``; whatever else is
            changed would make another run.
        search_dir: see ``compose_config``.

    Raises:
        InputError: the run is live, foreign or complete; or an override is refused.
    """
    manifest = check_reopens(folder)
    plain = manifest.get("config")
    if manifest.get("kind") == "logged" or not isinstance(plain, dict):
        raise InputError(
            f"{folder.name}: expected a run of autopsy train; a script of your own "
            "goes on with init(resume=...)"
        )
    config = _changed(folder, manifest, overrides, search_dir)
    done = (manifest.get("record") or {}).get("rows", 0)
    if manifest["status"] == "finished" and done >= config.steps:
        raise InputError(
            f"{folder.name}: expected a run that ended early, found one that finished "
            f"its {done} steps; steps={2 * done} trains it on"
        )
    before, after = dict(leaves(plain)), dict(leaves(public_config(config)))
    changes = [
        {"key": key, "before": before[key], "after": after[key]}
        for key in ("steps",)
        if before.get(key) != after[key]
    ]
    return Resume(folder, config, changes)


def _changed(
    folder: Path,
    manifest: dict[str, Any],
    overrides: Sequence[str],
    search_dir: str | None,
) -> RunConfig:
    chosen = {_key(one) for one in overrides}
    if odd := sorted(chosen - {*_CHANGEABLE, "paths"}):
        raise InputError(
            f"resume: expected no other choice than {', '.join(_CHANGEABLE)}, got "
            f"{', '.join(odd)}; a run with another choice is another run"
        )
    plain = dict(manifest["config"])
    plain["paths"] = {"root": str(folder.parent)}
    if chosen:
        asked = to_plain(compose_config(list(overrides), search_dir))
        plain |= {key: asked[key] for key in ("steps", "checkpoint") if key in chosen}
        plain["tracking"] = dict(plain["tracking"])
        for one in overrides:
            name = one.partition("=")[0]
            if _key(one) == "tracking":  # the group says the kind and nothing else
                name = name.partition(".")[2] or "kind"
                plain["tracking"][name] = asked["tracking"][name]
    uri = plain["tracking"]["uri"] or ""
    if plain["tracking"]["kind"] == "mlflow" and HIDDEN in uri:
        raise InputError(
            f"tracking.uri: expected an address with its password, which a manifest "
            f"does not keep, found {uri}; give tracking.uri=... or tracking=offline"
        )
    return from_plain(plain | {"experiment": manifest.get("experiment")})


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition(".")[0]


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
                _tell_difference(plan.folder, recorder, tell)
    finally:
        session.close()


def _tell_difference(
    folder: Path, recorder: Recorder, tell: Callable[[str], None]
) -> None:
    difference = recorder.replay and recorder.replay.difference
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
        _check_layout(folder, session, record)
        for line in _restore(session, folder, record):
            tell(f"{folder.name}: {line}")
        rows = record.rows if record.reader else None
        recorder = Recorder(plan.config, session, folder, on_step, rows)
        manifest["config"] = public_config(plan.config)
        manifest["tracking"] = manifest["config"]["tracking"]
        manifest["config_hash"] = config_hash(plan.config)
        dated = [one | {"step": record.next_step} for one in plan.changes]
        manifest["config_changes"] = [*manifest.get("config_changes", []), *dated]
        facts = {"from_step": session.step, "code_hash": code_hash()}
        manifest = reopen(folder, manifest, record, **facts)
    return recorder, Closing(folder, manifest, recorder)


def _check_layout(folder: Path, session: Session, record: OpenRecord) -> None:
    if record.reader and record.reader.layout != session.layout:
        raise InputError(
            f"{folder.name}: expected the columns that this code records, found "
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
