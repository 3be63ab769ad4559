"""The console that every verb prints to."""

from __future__ import annotations

import os
import sys

from rich.console import Console

PIPE_COLUMNS = 120  # a pipe or a log has no width of its own


class LastingConsole(Console):
    """Falls silent when its reader goes away; what is being done goes on."""

    def on_broken_pipe(self) -> None:
        """``autopsy train | head`` must not end a training that is half done."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def make_console() -> Console:
    """Standard output; plain lines, and a fixed width where none is known."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return LastingConsole()
    return LastingConsole(width=PIPE_COLUMNS)
