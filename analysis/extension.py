"""Columns that a journal gains after its header was written.

A run of somebody's own script learns its keys while it runs. Such a frame stands
before the first block that has one of its columns::

    EXTENSION_MAGIC  u32 length  u32 crc32(length + JSON)
    JSON: {"occasional": [name, ...], "arrays": {name: dtype, ...}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from minigpt.records import RecordLayout

EXTENSION_MAGIC = b"\x93EXT"
MAX_EXTENSIONS = 10_000  # frames of one journal; each is checked against all columns


def extension_payload(occasional: Sequence[str], arrays: Mapping[str, str]) -> bytes:
    """The JSON of a frame that adds these columns."""
    return json.dumps({"occasional": [*occasional], "arrays": dict(arrays)}).encode()


def extended(
    layout: RecordLayout, occasional: Sequence[str], arrays: Mapping[str, str]
) -> RecordLayout:
    """The layout with these columns after those that it has.

    Args:
        layout: of the columns so far.
        occasional: further names of occasional columns.
        arrays: further array columns, name -> dtype of the entries.

    Raises:
        ValueError: an array column is there already, which a dict would hide.
    """
    if twice := layout.arrays.keys() & arrays.keys():
        raise ValueError(f"array {min(twice)} is there already")
    return replace(
        layout,
        occasional=(*layout.occasional, *occasional),
        arrays={**layout.arrays, **arrays},
    )


def layout_after(layout: RecordLayout, payload: bytes) -> RecordLayout:
    """The layout once a frame was read; its names are not checked yet.

    Raises:
        ValueError: the payload is not one of a frame that adds columns.
    """
    try:
        found = json.loads(payload)
        if found.keys() != {"occasional", "arrays"}:
            raise ValueError(f"keys {sorted(found)!r:.80}")
        occasional, arrays = found["occasional"], found["arrays"]
        if type(occasional) is not list or type(arrays) is not dict:
            raise ValueError(f"columns {found!r:.80}")
        if not (occasional or arrays):
            raise ValueError("no column")
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{error!r:.80}") from None
    return extended(layout, occasional, arrays)
