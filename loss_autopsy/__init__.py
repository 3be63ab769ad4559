"""The public names of loss-autopsy, each imported when it is first used.

``init(...)`` begins a run that your own script logs, ``load(folder)`` reads a run
folder into a ``RunHistory``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {"init": "runners.script.init", "load": "analysis.history"}

__all__ = ["init", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
