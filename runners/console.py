"""The console that every verb prints to."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_COLUMNS = 120  # a pipe or a log has no width of its own


def make_console() -> Console:
    """Standard output; plain lines and a fixed width where it is no terminal."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=PIPE_COLUMNS)
