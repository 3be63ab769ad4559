"""Who writes a run, and whether that process still lives.

A run is called killed only where the death of its process can be proven: on the same
machine, in the same namespace of process ids. Anywhere else it may be alive.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ALIVE, DEAD, UNKNOWN = "alive", "dead", "unknown"

# After a restart the machine's name and id are all that ties a run to it, and a copy
# of the machine may have both; a run that still shows signs of life is not given up.
SILENT_SECONDS = 60.0
DYING_SECONDS = 2.0


def owner() -> dict[str, Any]:
    """The present process: where it is, its id and when it began."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "machine": _text("/etc/machine-id"),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "namespace": _namespace(),
        "pid": pid,
        "started": process_start(pid),
    }


def liveness(who: Any, last_sign: float | None = None) -> str:
    """Whether the process of an ``owner()`` lives: alive, dead or unknown.

    Args:
        who: what ``owner`` returned when the run began, as it was read from a file.
        last_sign: when the run last wrote something, seconds since the epoch.
    """
    if not isinstance(who, dict) or type(who.get("pid")) is not int:
        return UNKNOWN
    here = owner()
    if who.get("host") != here["host"]:
        return UNKNOWN
    if who.get("boot", here["boot"]) != here["boot"]:
        same = here["machine"] and who.get("machine") == here["machine"]
        silent = last_sign is not None and time.time() - last_sign > SILENT_SECONDS
        return DEAD if same and silent else UNKNOWN
    if who.get("namespace", here["namespace"]) != here["namespace"]:
        return UNKNOWN
    start = process_start(who["pid"])
    return ALIVE if start is not None and start == who.get("started") else DEAD


def settled(status: Callable[[], str]) -> str:
    """A status once it is not "running" any more, or after two seconds.

    The pipe of a killed process ends a moment before the process does.
    """
    until = time.monotonic() + DYING_SECONDS
    while (found := status()) == "running" and time.monotonic() < until:
        time.sleep(0.05)
    return found


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


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip() or None
    except OSError:
        return None  # not every system has it


def _namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
