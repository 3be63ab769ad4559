"""What a run's folder may be called, and how files in it are called after a key."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from minigpt.records import InputError

_NAME = re.compile(r"[A-Za-z0-9._ -]{1,120}")
MAX_SLUG = 80


def check_name(name: str) -> None:
    """A name becomes a folder, so nothing in it may act as a path.

    Raises:
        InputError: it might.
    """
    text = isinstance(name, str) and _NAME.fullmatch(name)
    legal = text and not name.startswith(".") and ".." not in name
    if not legal or name != name.strip():
        raise InputError(
            "name: expected 1 to 120 letters (a-z, A-Z), digits, spaces or - _ . "
            "without '..' and without a dot or space at its start or a space at its "
            f"end; got {name!r}"
        )


def slug(text: str) -> str:
    """A file name that says what the text does, as far as letters of it can."""
    short = re.sub(r"[^A-Za-z0-9_.-]+|\.{2,}", "_", text)[:MAX_SLUG].strip("._-")
    return short or "unnamed"


def default_name(project: str) -> str:
    """The name of a run that was given none: its project and the time in UTC."""
    return f"{slug(project)}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
