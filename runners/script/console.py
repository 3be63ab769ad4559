"""The few lines that a run says in somebody else's script: on standard error."""

from __future__ import annotations

import sys


def tell(line: str) -> None:
    """Say one line; a script whose standard error is closed is told nothing."""
    if sys.stderr is None:
        return
    try:
        print(f"loss-autopsy: {' '.join(line.split())}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # no reader, or closed: a training does not end because of that
