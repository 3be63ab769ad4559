"""A manifest as a run writes it, or one line that says what was made of it since."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from analysis.facts import facts_of_manifest
from analysis.history import MANIFEST, read_manifest
from minigpt.records import InputError

_TEXT, _MAYBE_TEXT = (str,), (str, type(None))
_EXPECTED: dict[str, tuple[type, ...]] = {
    "name": _TEXT,
    "started_at": _TEXT,
    "ended_at": _MAYBE_TEXT,
    "error": _MAYBE_TEXT,
    "experiment": _MAYBE_TEXT,
    "sweep": _MAYBE_TEXT,
    "config": (dict,),
    "git": (dict,),
    "shipping_rule": (dict,),
    "record": (dict, type(None)),
}
_TIMES = ("started_at", "ended_at")


def read_whole_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run that is to be shipped or gone on with.

    Raises:
        InputError: there is none, or an entry is missing or not what it should be.
    """
    manifest = read_manifest(folder)
    facts_of_manifest(manifest)
    for key, types in _EXPECTED.items():
        if key not in manifest or not isinstance(manifest[key], types):
            names = " or ".join(one.__name__ for one in types)
            found = repr(manifest[key])[:80] if key in manifest else "nothing"
            raise InputError(
                f"{folder / MANIFEST}: {key}: expected {names}, found {found}"
            )
    for key in _TIMES:
        try:
            datetime.fromisoformat(manifest[key] or "2000-01-01")
        except ValueError:
            raise InputError(
                f"{folder / MANIFEST}: {key}: expected a time, found "
                f"{manifest[key]!r:.80}"
            ) from None
    return manifest
