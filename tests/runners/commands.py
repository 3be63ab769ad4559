"""Runs trained in this process, and what a command of another one answers."""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runners.closing import RunResult
from runners.compose import compose_config
from runners.execution import execute
from runners.settings import TrackingConfig
from runners.tracker import Tracker

AUTOPSY = Path(sys.executable).with_name("autopsy")
NO_TRACKER = Tracker(TrackingConfig(kind="none"), Path("unused"))


def run(*overrides: str, root: Path, on_step=lambda *_: None) -> RunResult:
    """Train in this process, without MLflow."""
    config = compose_config([*overrides, f"paths.root={root}", "tracking=none"])
    return execute(config, NO_TRACKER, on_step)


@dataclass(frozen=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line that a mistake is answered with."""
        assert "Traceback" not in self.err
        (line,) = (self.out + self.err).strip().splitlines()
        return line


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> object:
    """The condition's value once it is true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not true within {seconds} seconds")


def health(address: str) -> str | None:
    """What a server of MLflow says of itself; None while there is none."""
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=2) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, OSError):
        return None
