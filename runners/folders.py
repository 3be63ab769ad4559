"""Run folders: made once, never overwritten; one name, one folder."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.history import MANIFEST
from minigpt.atomic import write_atomically
from minigpt.records import InputError

CONFIG = "config.yaml"
VOCABULARY = "vocabulary.json"
DASHBOARD = "dashboard.html"
CHECKPOINTS = "checkpoints"
MLFLOW = "mlflow.json"
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


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the folder's manifest; a reader sees the old one or the new one.

    Raises:
        OSError: the folder cannot be written.
    """
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    write_atomically(folder / MANIFEST, text.encode())


def iso_time(seconds: float | None = None) -> str:
    """A time, by default now, in UTC, ISO 8601 with milliseconds."""
    seconds = time.time() if seconds is None else seconds
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def owner() -> dict[str, Any]:
    """Who writes a run: host, process and when the process began."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "started": process_start(pid)}


def process_start(pid: int) -> str | None:
    """When a process began, in the kernel's ticks since boot; None if it is gone.

    A process id alone is used again after a while; with its start it is unique.
    Without a /proc the start is not known and "" is returned for a live process.
    """
    stat = Path(f"/proc/{pid}/stat")
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self").exists():
            return None
        return "" if _exists(pid) else None
    # field 3 of stat is the state; a zombie runs no more
    return None if fields[0] == "Z" else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_alive(manifest: dict[str, Any]) -> bool:
    """Whether the process that writes the run still lives.

    A run of another host, or of nobody we know, is taken for alive: nothing here
    can tell.
    """
    who = manifest.get("owner")
    if not isinstance(who, dict) or who.get("host") != socket.gethostname():
        return True
    if not isinstance(who.get("pid"), int):
        return True
    start = process_start(who["pid"])
    return start is not None and start == who.get("started")


def current_status(manifest: dict[str, Any]) -> str:
    """running, finished, failed or killed; a run whose process died is killed."""
    found = manifest["status"]
    if found == "running" and not is_alive(manifest):
        return "killed"
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
