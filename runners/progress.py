"""Progress of training runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

BAR_SECONDS = 0.1
LINE_SECONDS = 5.0


class TrainingProgress:
    """Shows how far the runs of one command are; used as a context manager.

    Args:
        console: where to.
        runs: how many runs will come.
    """

    def __init__(self, console: Console, runs: int) -> None:
        self._console, self._runs = console, runs
        self._name: str | None = None
        self._number = 0
        self._next = 0.0
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def on_step(self, name: str, step: int, steps: int, loss: float) -> None:
        """Called after each step; draws a few times a second at most."""
        now = time.monotonic()
        if name != self._name:
            self._begin(name, steps)
        elif now < self._next and step + 1 < steps:
            return
        if self._console.is_terminal:
            self._next = now + BAR_SECONDS
            self._bar.update(self._task, completed=step + 1, loss=loss)
        elif step + 1 == steps or step:
            self._next = now + LINE_SECONDS
            line = f"{self._label}: step {step + 1}/{steps}, loss {loss:.3f}"
            self._console.print(line, markup=False, highlight=False)
        else:
            self._next = now + LINE_SECONDS

    def _begin(self, name: str, steps: int) -> None:
        self._name = name
        self._number += 1
        self._label = f"[{self._number}/{self._runs}] {name}"
        self._task = self._bar.add_task(self._label, total=steps, loss=float("nan"))
