"""Run folders: made once, never overwritten; one name, one folder."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from analysis.history import MANIFEST

CONFIG = "config.yaml"
VOCABULARY = "vocabulary.json"
CHECKPOINTS = "checkpoints"
MLFLOW = "mlflow.json"
SWEEPS = ".sweeps"
SWEEP_FILE = "sweep.json"


def create_run_folder(root: Path, name: str) -> Path:
    """Make ``root/name``, or ``root/name-2`` and so on if that name is taken.

    Raises:
        OSError: the root cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
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
    """Every folder under the root that holds a manifest, oldest name first."""
    if not root.is_dir():
        return []
    found = (path for path in sorted(root.iterdir()) if not path.name.startswith("."))
    return [path for path in found if (path / MANIFEST).is_file()]


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

    A run of another host is taken for alive: nothing here can tell.
    """
    who = manifest["owner"]
    if who["host"] != socket.gethostname():
        return True
    start = process_start(who["pid"])
    return start is not None and start == who["started"]


def current_status(manifest: dict[str, Any]) -> str:
    """running, finished, failed or killed; a run whose process died is killed."""
    found = manifest["status"]
    if found == "running" and not is_alive(manifest):
        return "killed"
    return found
