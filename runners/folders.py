"""Run folders: made once, never overwritten; one name, one folder."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from analysis.history import JOURNAL, MANIFEST, read_manifest
from minigpt.atomic import write_atomically
from minigpt.records import InputError
from runners.owner import DEAD, liveness

CONFIG = "config.yaml"
VOCABULARY = "vocabulary.json"
DASHBOARD = "dashboard.html"
CHECKPOINTS = "checkpoints"
MLFLOW = "mlflow.json"
HEARTBEAT = "heartbeat"
RESERVE = ".reserve"
RESERVE_BYTES = 64 << 10
SWEEPS = ".sweeps"
SWEEP_FILE = "sweep.json"

RUN_ID = re.compile(r"[0-9a-f]{32}")


def make_root(root: Path) -> None:
    """Make the folder of all runs, if it is missing.

    Raises:
        InputError: there is a file in its place, or above it.
        OSError: it cannot be made.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"paths.root {root}: expected a folder, found a file in its place"
        ) from error


def create_run_folder(root: Path, name: str) -> Path:
    """Make ``root/name``, or ``root/name-2`` and so on if that name is taken.

    Raises:
        InputError: the root is a file.
        OSError: the root cannot be written.
    """
    make_root(root)
    number = 1
    while True:
        folder = root / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def run_folders(root: Path) -> list[Path]:
    """Every folder under the root that holds a manifest, by name."""
    if not root.is_dir():
        return []
    found = (path for path in sorted(root.iterdir()) if not path.name.startswith("."))
    return [path for path in found if (path / MANIFEST).is_file()]


def sweep_folders(root: Path, sweep: str) -> list[Path]:
    """The folders below the root of the runs of a sweep, in the order of their start.

    One that is damaged is not known to be of any sweep, and must not hide the rest.
    """
    found = {}
    for folder in run_folders(root):
        with suppress(InputError):
            manifest = read_manifest(folder)
            if manifest.get("sweep") == sweep:
                found[folder] = str(manifest.get("started_at"))
    return sorted(found, key=lambda folder: found[folder])


def new_key() -> str:
    """A random name for one run or sweep, by which MLflow is asked for it."""
    return uuid4().hex


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the folder's manifest; a reader sees the old one or the new one.

    Raises:
        OSError: the folder cannot be written.
    """
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    write_atomically(folder / MANIFEST, text.encode())


def reserve_room(folder: Path) -> None:
    """Take the room that the last manifest needs, before the record takes it all.

    Raises:
        OSError: there is no such room even now.
    """
    (folder / RESERVE).write_bytes(b"\0" * RESERVE_BYTES)


def release_room(folder: Path) -> None:
    """Give back what was reserved; harmless where nothing was."""
    (folder / RESERVE).unlink(missing_ok=True)


def iso_time(seconds: float | None = None) -> str:
    """A time, by default now, in UTC, ISO 8601 with milliseconds."""
    seconds = time.time() if seconds is None else seconds
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def last_sign(folder: Path) -> float | None:
    """When the run last wrote something, seconds since the epoch; None if never."""
    times = []
    for name in (HEARTBEAT, JOURNAL, MANIFEST):
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times, default=None)


def current_status(folder: Path, manifest: dict[str, Any]) -> str:
    """running, finished, failed or killed; a run whose process died is killed."""
    found = manifest["status"]
    if found == "running":
        lives = liveness(manifest.get("owner"), last_sign(folder))
        return "killed" if lives == DEAD else found
    return found


def read_link(folder: Path) -> dict[str, Any] | None:
    """What ``mlflow.json`` says of the run's place in MLflow; None without one.

    Raises:
        InputError: it is damaged.
    """
    path = folder / MLFLOW
    if not path.is_file():
        return None
    try:
        link = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        link = None
    run_id = link.get("run_id") if isinstance(link, dict) else None
    if not (isinstance(run_id, str) and RUN_ID.fullmatch(run_id)):
        raise InputError(
            f"{path}: expected a JSON object with the run_id of a run in MLflow, found "
            "none; without the file the run is tracked as a new one"
        )
    return link
