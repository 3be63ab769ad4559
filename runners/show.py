"""``autopsy show``: a few plain lines about a run, or one line a run of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from analysis.history import RunHistory, load, read_manifest
from analysis.logged import LOGGED
from minigpt.records import TRAIN_LOSS, InputError
from runners.folders import current_status, read_link
from runners.references import resolve
from runners.report import say
from runners.tracked import Place

_STATUS_NOTE = "the run's status is"  # said in a line of its own, and as of now


def show(reference: str, place: Place, console: Console) -> int:
    """Print what there is to know at first sight.

    Returns:
        0; 1 if one of several runs cannot be read.

    Raises:
        InputError: a bad reference, or one run that cannot be read.
    """
    folders = resolve(reference, place)
    if len(folders) == 1:
        for label, value in _facts(folders[0]).items():
            say(console, f"{label + ':':13}{value}")
        return 0
    code = 0
    for folder in folders:
        try:
            facts = _facts(folder)
        except InputError as error:
            say(console, f"{folder.name}: {error}")
            code = 1
            continue
        keys = ("status", "steps", "final loss", "folder")
        say(console, f"{facts['name']}: " + ", ".join(f"{k} {facts[k]}" for k in keys))
    return code


def _facts(folder: Path) -> dict[str, str]:
    """Label -> what to print of it.

    Raises:
        InputError: not a run folder, or its record cannot be read.
    """
    manifest, history = read_manifest(folder), load(folder)
    facts = {
        "name": history.name,
        "folder": str(folder),
        "status": _status(folder, manifest),
        "steps": _steps(manifest, history),
        "final loss": _final_loss(manifest, history),
        "config hash": _config_hash(manifest),
        "MLflow run": _mlflow(folder, manifest),
    }
    notes = [note for note in history.notes if not note.startswith(_STATUS_NOTE)]
    for number, note in enumerate(notes, 1):
        facts[f"note {number}"] = _text(note)
    return facts


def _status(folder: Path, manifest: dict[str, Any]) -> str:
    status, error = current_status(folder, manifest), manifest.get("error")
    return f"{status} ({_text(error)})" if error else status


def _steps(manifest: dict[str, Any], history: RunHistory) -> str:
    config = manifest.get("config")
    planned = config.get("steps") if isinstance(config, dict) else None
    known = isinstance(planned, int) and planned != len(history)
    return f"{len(history)} of {planned}" if known else str(len(history))


def _config_hash(manifest: dict[str, Any]) -> str:
    if manifest.get("kind") == LOGGED:
        return "none: a script logged the run"
    return _text(manifest.get("config_hash"))


def _final_loss(manifest: dict[str, Any], history: RunHistory) -> str:
    if not (len(history) and history.has(TRAIN_LOSS)):
        return "none recorded"
    rows = np.flatnonzero(history.measured(TRAIN_LOSS))
    if not len(rows):
        return "none recorded"
    unit = "as logged" if manifest.get("kind") == LOGGED else "nats/token"
    return f"{history.scalar(TRAIN_LOSS)[rows[-1]]:.4f} {unit}"


def _mlflow(folder: Path, manifest: dict[str, Any]) -> str:
    try:
        link = read_link(folder)
    except InputError as error:
        return str(error)
    if link is None:
        tracking = manifest.get("tracking")
        kind = tracking.get("kind") if isinstance(tracking, dict) else None
        return "none yet; autopsy sync" if kind in ("mlflow", "offline") else "none"
    return link["run_id"] + ("" if link.get("complete") else " (not complete there)")


def _text(value: Any) -> str:
    """One line of what may be anything."""
    return " ".join(str(value).split())[:500] if value is not None else "unknown"
