"""``loss_autopsy.init``: begins or goes on with a run that a script logs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.history import MANIFEST, load, read_manifest
from analysis.logged import LOGGED
from minigpt.records import InputError
from runners.custody import held
from runners.folders import create_run_folder, write_manifest
from runners.reopen import OpenRecord, check_reopens, open_record, reopen
from runners.run_names import check_name, default_name
from runners.script.config import change_config
from runners.script.console import tell
from runners.script.manifest import open_logged
from runners.script.run import Run
from runners.script.values import brief, check_config, check_key, check_text
from runners.settings import TrackingConfig, default_uri
from runners.tracker import Tracker

MODES = {"online": "mlflow", "offline": "offline", "disabled": "none"}
DEFAULT_ROOT = "experiments"


def init(
    project: str = "loss-autopsy",
    name: str | None = None,
    group: str | None = None,
    job_type: str | None = None,
    tags: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    notes: str | None = None,
    mode: str = "online",
    resume: str | bool | None = None,
    root: str | Path | None = None,
    uri: str | None = None,
) -> Run:
    """Begin a run, or go on with one.

    Args:
        project: the MLflow experiment.
        name: of the run and its folder; by default project and time.
        group: what belongs together, such as the seeds of one setting.
        job_type: such as "train" or "eval".
        tags: texts to find the run by.
        config: keys and values, nested as you like; text, finite numbers, bool, None
            and lists.
        notes: anything a reader should know.
        mode: "online"; "offline" leaves MLflow to `autopsy sync`; "disabled" writes
            nothing and checks everything.
        resume: name or folder of a run to go on with; True goes on with ``name`` if
            it is there and begins it if not.
        root: folder of all runs; by default that of AUTOPSY_ROOT, or "experiments".
        uri: the MLflow store; by default a SQLite file in the root.

    Raises:
        InputError: an argument is not what it should be, or the run to go on with is
            live, foreign or damaged; nothing was made.
        OSError: the folder cannot be written.
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise InputError(f"mode: expected one of {', '.join(MODES)}; got {brief(mode)}")
    check_text("project", project, required=True)
    tracking = TrackingConfig(kind=MODES[mode], uri=uri, experiment=project)
    said = {
        "group": check_text("group", group),
        "job_type": check_text("job_type", job_type),
        "tags": _tags(tags),
        "notes": check_text("notes", notes),
    }
    plain = check_config({} if config is None else config)
    if name is not None:
        check_name(name)
    place = _root(root)
    going_on = _resumed(resume, name, place)
    if mode == "disabled":
        called = name or (going_on.name if going_on else default_name(project))
        manifest = open_logged(called, {}, tracking, **said)
        change_config(manifest, plain, None)
        return Run(called, None, manifest, Tracker(tracking, place))
    if going_on:
        return _go_on(going_on, plain, tracking, said)
    return _begin(place, name or default_name(project), plain, tracking, said)


def _root(root: str | Path | None) -> Path:
    chosen = root if root is not None else os.environ.get("AUTOPSY_ROOT")
    if not isinstance(chosen, str | Path | None):
        raise InputError(f"root: expected a folder, got {brief(chosen)}")
    return Path(chosen or DEFAULT_ROOT)


def _tags(tags: Any) -> list[str]:
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise InputError(f"tags: expected a list of texts, got {brief(tags)}")
    for tag in tags:
        try:
            check_key(tag)
        except InputError as error:
            raise InputError(f"tags: {error}") from None
    return list(dict.fromkeys(tags))


def _resumed(resume: Any, name: str | None, root: Path) -> Path | None:
    """The folder of the run that is to be gone on with, if any."""
    if resume is None or resume is False:
        return None
    if resume is True:
        if name is None:
            raise InputError("resume: expected a name= with resume=True, got none")
        folder = root / name
        return folder if (folder / MANIFEST).is_file() else None
    if not isinstance(resume, str | Path) or not str(resume):
        raise InputError(
            f"resume: expected a run's name or folder, or True; got {brief(resume)}"
        )
    found = [Path(resume), root / resume]
    for folder in found:
        if (folder / MANIFEST).is_file():
            return folder
    raise InputError(
        f"resume: expected a run, found none at {' or '.join(map(str, found))}"
    )


def _begin(
    root: Path,
    name: str,
    config: dict[str, Any],
    tracking: TrackingConfig,
    said: dict[str, Any],
) -> Run:
    folder = create_run_folder(root, name)
    try:
        manifest = open_logged(folder.name, {}, tracking, **said)
        change_config(manifest, config, None)
        write_manifest(folder, manifest)
        tracker = Tracker(tracking, root)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    tracker.follow(folder)
    return Run(folder.name, folder, manifest, tracker)


def _go_on(
    folder: Path,
    config: dict[str, Any],
    tracking: TrackingConfig,
    said: dict[str, Any],
) -> Run:
    """Open a run again; what is said of it now is added to what was."""
    manifest = read_manifest(folder)
    if manifest.get("kind") != LOGGED:
        raise InputError(
            f"resume: expected a run that a script logged, found {folder.name} of "
            f"autopsy train; `autopsy train resume={folder.name}` goes on with it"
        )
    if tracking.kind == "mlflow" and not tracking.uri:
        default_uri(folder.parent)  # refuses a folder before its run is opened
    with held(folder, tell):
        manifest = check_reopens(folder)
        record = open_record(folder, manifest)
        change_config(manifest, config, record.next_step)
        manifest |= {key: value for key, value in said.items() if value}
        manifest["tracking"] = open_logged("", {}, tracking)["tracking"]
        manifest = reopen(folder, manifest, record)
    tracker = Tracker(tracking, folder.parent)
    tracker.follow(folder)
    run = Run(folder.name, folder, manifest, tracker, record)
    _recall(run, folder, record)
    return run


def _recall(run: Run, folder: Path, record: OpenRecord) -> None:
    if record.lost:
        tell(
            f"{folder.name}: {record.lost} bytes of an unfinished block were set aside"
        )
    tell(f"{folder.name}: {record.rows:,} steps are recorded; it goes on from there")
    if record.reader:
        run.summary.recall(load(folder))
