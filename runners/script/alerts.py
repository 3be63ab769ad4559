"""What a script wants somebody to see: kept in its run folder the moment it is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from minigpt.records import InputError
from runners.folders import iso_time

ALERTS = "alerts.jsonl"
LEVELS = ("info", "warn", "error")
MAX_BYTES = 4 << 20  # of a file that is read; a note shows a few of them


def make_alert(title: str, text: str, level: str, step: int | None) -> dict[str, Any]:
    """An alert as a line of the file holds it.

    Raises:
        InputError: no title, or a level that is none.
    """
    if not isinstance(title, str) or not title.strip():
        raise InputError(f"alert: title: expected text, got {title!r:.80}")
    if not isinstance(text, str):
        raise InputError(f"alert {title!r}: expected text, got {text!r:.80}")
    if level not in LEVELS:
        raise InputError(
            f"alert {title!r}: level: expected one of {', '.join(LEVELS)}; "
            f"got {level!r:.80}"
        )
    return {
        "time": iso_time(),
        "step": step,
        "level": level,
        "title": title,
        "text": text,
    }


def append_alert(folder: Path, alert: dict[str, Any]) -> None:
    """Write one line in one call, which a killed process leaves whole.

    Raises:
        OSError: the folder cannot be written.
    """
    line = json.dumps(alert, ensure_ascii=True) + "\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    descriptor = os.open(folder / ALERTS, flags, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read_alerts(folder: Path) -> list[dict[str, Any]]:
    """The alerts of a run folder, oldest first; lines that are none are passed over.

    The last line may be half written, and what a script wrote is anybody's text.
    """
    path = folder / ALERTS
    if not path.is_file():
        return []
    with path.open("rb") as file:
        lines = file.read(MAX_BYTES).splitlines()
    return [alert for line in lines if (alert := _alert(line))]


def _alert(line: bytes) -> dict[str, Any] | None:
    try:
        alert = json.loads(line)
    except (ValueError, RecursionError):
        return None
    texts = ("level", "title", "text")
    if isinstance(alert, dict) and all(isinstance(alert.get(t), str) for t in texts):
        return alert
    return None
